"""Batches of LLM Engine's; its files are OpenAI's.

A request becomes the lines of an input file (``batch_inputs``, ``batch_lines``), which any batch
has, and the results become one array (``batch_output``).

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
import contextlib
import logging
import math
from datetime import UTC, datetime
from typing import Any, Literal

from worker.batches.record import Batch, Status, StoredBatch
from worker.dialects.llm_engine import batch_inputs
from worker.dialects.llm_engine.batch_output import OUTPUTS, ArrayOutput
from worker.dialects.llm_engine.batch_requests import BatchCompletions, Priority
from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject
from worker.files import PREFIX as FILE
from worker.routes.long_work import cancel_batch, check_endpoint
from worker.routes.models import usable
from worker.routes.route import Asked
from worker.validation import without_nulls
from worker.volume import failures, ids, write
from worker.volume.pages import fitting

log = logging.getLogger(__name__)

# Jobs in a list: to tell how far each is takes a look at its files.
MOST_LISTED = 100
# The file in a batch's directory that an update writes.
PRIORITY = "priority.json"
HOUR_S = 3600

Version = Literal["llm_engine_v1", "llm_engine_v2"]

# A batch that expired has not become what was asked.
STATUSES: dict[Status, str] = {
    "validating": "queued",
    "in_progress": "running",
    "finalizing": "running",
    "cancelling": "running",
    "completed": "completed",
    "failed": "failed",
    "expired": "failed",
    "cancelled": "cancelled",
}


async def create_v1(asked: Asked) -> dict[str, Any]:
    """Create a batch of prompts with common parameters (LLM Engine's v1)."""
    batch, to_send = await _start(asked, "llm_engine_v1")
    return {"job_id": batch.id, **to_send}


async def create_v2(asked: Asked) -> dict[str, Any]:
    """Create a batch of requests' bodies (LLM Engine's v2)."""
    batch, to_send = await _start(asked, "llm_engine_v2")
    return {**await asyncio.to_thread(job, batch), **to_send}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a batch of LLM Engine's, of either version."""

    def settle_and_describe() -> dict[str, Any]:
        batch = _find(asked)
        asked.resources.batches.settle(batch)
        return job(batch)

    return {"job": await asyncio.to_thread(settle_and_describe)}


async def list_jobs(asked: Asked) -> dict[str, Any]:
    """List the newest batches of LLM Engine's."""

    def newest() -> list[dict[str, Any]]:
        ours = [batch for batch in asked.resources.batches.all() if _is_ours(batch)]
        return fitting(map(job, reversed(ours[-MOST_LISTED:])))

    return {"jobs": await asyncio.to_thread(newest)}


async def update(asked: Asked) -> dict[str, Any]:
    """Note another priority of a batch; the order of its requests stays.

    Raises:
        InvalidInput: the priority is no text, or too long.
    """
    priority = Priority.of_body({"priority": asked.body.get("priority")})

    def write_priority() -> dict[str, Any]:
        batch = _find(asked)
        with failures():
            write(batch.directory / PRIORITY, priority.model_dump_json().encode())
        return job(batch)

    return {**await asyncio.to_thread(write_priority), "success": True}


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a batch; one that has ended is none any more, without success."""
    batch = await asyncio.to_thread(_find, asked)
    try:
        return {"success": True, **await cancel_batch(batch, asked.resources)}
    except Conflict:
        return {"success": False}


def job(batch: Batch) -> dict[str, Any]:
    """Return a batch as a job of LLM Engine's. Reads files: for threads.

    Raises:
        NoSuchObject: there is none, or it has just been removed.
    """
    later, now = batch.read(PRIORITY, Priority), batch.snapshot()
    asked, counts = now.request.extra, now.counts
    # Who has no access to the volume reads the results in OpenAI's form.
    notes = {
        "output_file_id": counts.output_file_id,
        "error_file_id": counts.error_file_id,
        "error": now.mistakes[0]["message"] if now.mistakes else None,
    }
    return {
        "job_id": batch.id,
        "input_data_path": asked["input_data_path"],
        "output_data_path": asked["output_data_path"],
        "model_config": asked["model_config"],
        "priority": later.priority if later else asked["priority"],
        "status": STATUSES[now.status],
        "created_at": _iso(now.request.created_at),
        "expires_at": _iso(now.request.expires_at),
        "completed_at": None if now.ended_at is None else _iso(now.ended_at),
        "metadata": {**asked["metadata"], **without_nulls(notes)},
    }


def _iso(seconds: float) -> str:
    """Return a time in ISO's form, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _find(asked: Asked) -> Batch:
    """Find the batch that a path names.

    Raises:
        NoSuchObject: there is none, or it is OpenAI's.
    """
    id = asked.parameters["job_id"]
    batch = asked.resources.batches.get(id)
    if not _is_ours(batch):
        raise NoSuchObject(f"There is no job {id!r}; a batch of OpenAI's is at /v1/batches.")
    return batch


def _is_ours(batch: Batch) -> bool:
    return batch.request.output in OUTPUTS


async def _start(asked: Asked, version: Version) -> tuple[Batch, dict[str, Any]]:
    """Create a batch and start it; return what callers have to send, too, if they have to.

    Raises:
        InvalidInput: naming the field.
    """
    request = BatchCompletions.of_body(asked.body)
    served = [card["id"] for card in await usable(asked)]
    if (name := request.config.model) not in served:
        message = f"there is no model {name!r}; this worker serves {', '.join(served)}"
        raise InvalidInput(f"model_config.model: {message}", param="model_config.model")
    if names := request.without_effect:
        told = ", ".join(names)
        log.info("request %s: no effect on an endpoint: %s", asked.request_id, told)
    batch = await asyncio.to_thread(_create, asked, request, version)
    return batch, await asked.resources.begin(batch.work, request.data_parallelism)


def _create(asked: Asked, request: BatchCompletions, version: Version) -> Batch:
    """Create a batch, or return the one that has its id: the request came twice.

    Raises:
        Conflict: another request has this id.
        WorkerError: the input or a path is refused, or the volume fails.
    """
    batches = asked.resources.batches
    batch_id = batches.id_of(asked.request_id)
    path, file_id = request.input_data_path, ids.derived(FILE, batch_id)

    def kept(url: str) -> StoredBatch:
        return StoredBatch(
            id=batch_id,
            input_file_id=file_id,
            endpoint=url,
            completion_window=f"{math.ceil(request.max_runtime_sec / HOUR_S)}h",
            lasts_s=request.max_runtime_sec,
            data_parallelism=request.data_parallelism,
            output=version,
            extra={
                "input_data_path": path,
                "output_data_path": request.output_data_path,
                "model_config": {"model": request.config.model},
                "priority": request.priority,
                "metadata": request.metadata,
            },
        )

    reserved: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not batches.has(batch_id):
        reserved = ArrayOutput(request.output_data_path, batches.files, batch_id).reserved()
    elif path:
        # What it has now counts no more.
        return batches.create(kept(batches.get(batch_id).request.endpoint))
    by_priority = asked.engines.base.model.by_priority
    with reserved:
        place = batch_inputs.input_place(path, batches.files) if path else None
        read = batch_inputs.v1 if version == "llm_engine_v1" else batch_inputs.v2
        url, lines = read(request, place, batches.limits, request.rank if by_priority else None)
        check_endpoint(url, asked.engines)
        try:
            batches.files.receive(lines, filename=f"{batch_id}.jsonl", purpose="batch", id=file_id)
        except InputTooLarge:
            message = "the requests of this batch have more bytes than a file may (FILES_MAX_MB)"
            raise InputTooLarge(f"content: {message}", param="content") from None
        return batches.create(kept(url))
