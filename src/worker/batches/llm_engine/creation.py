"""LLM Engine's batches on the volume: created, found, shown and changed.

All functions read and write files: they are for threads.
"""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, Literal

from worker.batches.llm_engine import inputs, lines, views
from worker.batches.llm_engine.models import BatchRequest, Priority
from worker.batches.llm_engine.places import Output, input_place
from worker.batches.request import Kept
from worker.batches.state import Batch
from worker.batches.store import Batches
from worker.errors import InputTooLarge, NoSuchObject
from worker.files import PREFIX
from worker.volume import failures, ids, write

Version = Literal[1, 2]

# The file in a batch's directory that an update writes.
PRIORITY = "priority.json"
HOUR_S = 3600


def create(
    batches: Batches,
    asked: BatchRequest,
    version: Version,
    batch_id: str,
    *,
    by_priority: bool,
    check_endpoint: Callable[[str], None],
) -> Batch:
    """Create a batch, or return the one that has its id: the request came twice.

    Args:
        batches: of the volume.
        asked: the request.
        version: of LLM Engine's API.
        batch_id: what it will have.
        by_priority: whether the engine heeds priorities.
        check_endpoint: raises ``InvalidInput`` for the URL of lines that nobody could answer.

    Raises:
        Conflict: another request has this id.
        WorkerError: the input or a path is refused, or the volume fails.
    """
    reserved: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not batches.has(batch_id):
        reserved = Output(asked.output_data_path, batches.files, batch_id).reserved()
    elif asked.input_data_path:
        # What it has now counts no more.
        there = batches.get(batch_id).request
        again = _kept(asked, version, batch_id, there.input_file_id, there.endpoint)
        return batches.create(again)
    path, rank = asked.input_data_path, asked.rank if by_priority else None
    with reserved:
        place = input_place(path, batches.files) if path else None
        if version == 1:
            url, texts = lines.COMPLETIONS, inputs.v1(asked, place, batches.limits, rank)
        else:
            url, texts = inputs.v2(asked, place, batches.limits, rank)
        check_endpoint(url)
        file_id, name = ids.derived(PREFIX, batch_id), f"{batch_id}.jsonl"
        try:
            batches.files.receive(texts, filename=name, purpose="batch", id=file_id)
        except InputTooLarge:
            message = "the requests of this batch have more bytes than a file may (FILES_MAX_MB)"
            raise InputTooLarge(f"content: {message}", param="content") from None
        return batches.create(_kept(asked, version, batch_id, file_id, url))


def _kept(asked: BatchRequest, version: Version, batch_id: str, file_id: str, url: str) -> Kept:
    return Kept(
        id=batch_id,
        input_file_id=file_id,
        endpoint=url,
        created_at=int(time.time()),
        completion_window=f"{math.ceil(asked.max_runtime_sec / HOUR_S)}h",
        lasts_s=asked.max_runtime_sec,
        data_parallelism=asked.data_parallelism,
        form="llm_engine_v1" if version == 1 else "llm_engine_v2",
        extra={
            "input_data_path": asked.input_data_path,
            "output_data_path": asked.output_data_path,
            "model_config": {"model": asked.config.model},
            "priority": asked.priority,
            "metadata": asked.metadata,
        },
    )


def find(batches: Batches, batch_id: str) -> Batch:
    """Find one of LLM Engine's batches.

    Raises:
        NoSuchObject: there is none, or it is OpenAI's.
    """
    batch = batches.get(batch_id)
    if not is_ours(batch):
        raise NoSuchObject(f"There is no job {batch_id!r}; a batch of OpenAI's is at /v1/batches.")
    return batch


def is_ours(batch: Batch) -> bool:
    """Return whether a batch is LLM Engine's."""
    return batch.request.form != "openai"


def shown(batch: Batch) -> dict[str, Any]:
    """Return a batch as a job of LLM Engine's."""
    asked, later = batch.request.extra, batch.read(PRIORITY, Priority)
    if later is not None:
        asked = {**asked, "priority": later.priority}
    return views.job(batch.shown(), asked)


def give_priority(batch: Batch, priority: Priority) -> None:
    """Note another priority, which is shown from now on; the order of requests stays."""
    with failures():
        write(batch.directory / PRIORITY, priority.model_dump_json().encode())
