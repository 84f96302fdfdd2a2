"""LLM Engine's routes for batches; the files are the same as OpenAI's."""

import asyncio
import contextlib
import logging
import math
from datetime import UTC, datetime
from typing import Any, Literal

from worker.batches.record import Batch, BatchStatus, StoredBatch
from worker.dialects.llm_engine import batch_inputs
from worker.dialects.llm_engine.batch_inputs import BatchCompletionsRequest, PriorityUpdate
from worker.dialects.llm_engine.batch_output import OUTPUTS, ArrayOutput
from worker.errors import Conflict, InputTooLarge, NoSuchObject, field_error
from worker.files import FILE_PREFIX as FILE
from worker.routes.long_work import cancel_batch, check_batch_route
from worker.routes.models import adapters_location, list_usable_cards
from worker.routes.route import RouteRequest
from worker.validation import drop_nulls, unknown_model_advice
from worker.volume import translate_os_errors
from worker.volume.durable import write_file
from worker.volume.pages import truncate_page

log = logging.getLogger(__name__)

# Maximum number of jobs in a list, since the status of each is read from files.
MAX_LISTED = 100
# Name of the file in a batch's directory that stores a changed priority.
PRIORITY_FILE = "priority.json"
HOUR_S = 3600

Version = Literal["llm_engine_v1", "llm_engine_v2"]

# LLM Engine's statuses by the statuses of a batch; for its client, an expired batch has failed.
STATUSES: dict[BatchStatus, str] = {
    "validating": "queued",
    "in_progress": "running",
    "finalizing": "running",
    "cancelling": "running",
    "completed": "completed",
    "failed": "failed",
    "expired": "failed",
    "cancelled": "cancelled",
}


async def create_v1(request: RouteRequest) -> dict[str, Any]:
    """Create a batch of prompts with common parameters (LLM Engine's v1)."""
    batch, run_with = await _submit_batch(request, "llm_engine_v1")
    return {"job_id": batch.id, **run_with}


async def create_v2(request: RouteRequest) -> dict[str, Any]:
    """Create a batch of requests' bodies (LLM Engine's v2)."""
    batch, run_with = await _submit_batch(request, "llm_engine_v2")
    return {**await asyncio.to_thread(job_object, batch), **run_with}


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a batch of either version, and who runs it."""

    def update_and_describe() -> dict[str, Any]:
        batch = _find_batch(request)
        request.resources.batches.end_if_due(batch)
        return {"job": job_object(batch), **request.resources.describe_run(batch)}

    return await asyncio.to_thread(update_and_describe)


async def list_jobs(request: RouteRequest) -> dict[str, Any]:
    """List the newest batches."""
    resources = request.resources

    def list_newest() -> list[dict[str, Any]]:
        page = resources.batches.list_newest(limit=MAX_LISTED, tags=OUTPUTS)
        return truncate_page(
            {**job_object(batch), **resources.describe_run(batch)} for batch in page.data
        )

    return {"jobs": await asyncio.to_thread(list_newest)}


async def update_priority(request: RouteRequest) -> dict[str, Any]:
    """Change the displayed priority of a batch; its requests retain their own."""
    priority = PriorityUpdate.from_body({"priority": request.body.get("priority")})

    def write_and_describe() -> dict[str, Any]:
        batch = _find_batch(request)
        with translate_os_errors():
            write_file(batch.directory / PRIORITY_FILE, priority.model_dump_json().encode())
        return job_object(batch)

    return {**await asyncio.to_thread(write_and_describe), "success": True}


async def cancel(request: RouteRequest) -> dict[str, Any]:
    """Cancel a batch; ``success`` is false if it has already ended."""
    batch = await asyncio.to_thread(_find_batch, request)
    try:
        return {"success": True, **await cancel_batch(batch, request.resources)}
    except Conflict:
        return {"success": False}


def job_object(batch: Batch) -> dict[str, Any]:
    """Return a batch as LLM Engine's job object. Reads files, so call it in a thread."""
    update, snapshot = batch.read_file(PRIORITY_FILE, PriorityUpdate), batch.snapshot()
    extra = snapshot.request.extra
    # Callers without access to the volume can download the files with these ids (OpenAI's format).
    details = {
        "output_file_id": snapshot.output_file_id,
        "error_file_id": snapshot.error_file_id,
        "error": snapshot.mistakes[0]["message"] if snapshot.mistakes else None,
    }
    return {
        "job_id": batch.id,
        "input_data_path": extra["input_data_path"],
        "output_data_path": extra["output_data_path"],
        "model_config": extra["model_config"],
        "priority": update.priority if update else extra["priority"],
        "status": STATUSES[snapshot.status],
        "created_at": _iso_time(snapshot.request.created_at),
        "expires_at": _iso_time(snapshot.request.expires_at),
        "completed_at": None if snapshot.ended_at is None else _iso_time(snapshot.ended_at),
        "metadata": {**extra["metadata"], **drop_nulls(details)},
    }


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _find_batch(request: RouteRequest) -> Batch:
    id = request.path_params["job_id"]
    batch = request.resources.batches.get(id)
    if batch.request.output not in OUTPUTS:
        raise NoSuchObject(f"There is no job {id!r}; a batch of OpenAI's is at /v1/batches.")
    return batch


async def _submit_batch(request: RouteRequest, version: Version) -> tuple[Batch, dict[str, Any]]:
    """Create a batch and start its jobs; also return the dict of ``Resources.start_long_jobs``."""
    body = BatchCompletionsRequest.from_body(request.body)
    models = [card["id"] for card in await list_usable_cards(request)]
    if (name := body.config.model) not in models:
        adapters_location(request).check_name("adapter", name, "model_config.model")
        message = f"there is no model {name!r}; {unknown_model_advice(name, models)}"
        raise field_error("model_config.model", message)
    if names := body.ignored_keys:
        ignored = ", ".join(names)
        log.info("request %s: these parameters have no effect: %s", request.request_id, ignored)
    batch = await asyncio.to_thread(_create_batch, request, body, version)
    return batch, await request.resources.start_long_jobs(
        batch.work_reference, body.data_parallelism
    )


def _create_batch(request: RouteRequest, body: BatchCompletionsRequest, version: Version) -> Batch:
    """Create a batch, or return the existing one if the same request was sent before."""
    batches = request.resources.batches
    batch_id = batches.id_for_job(request.request_id)
    batches.check_room_for(batch_id)
    path, file_id = body.input_data_path, batches.volume.location.derive_id(FILE, batch_id)

    def make_stored_batch(url: str) -> StoredBatch:
        return StoredBatch(
            id=batch_id,
            input_file_id=file_id,
            endpoint=url,
            completion_window=f"{math.ceil(body.max_runtime_sec / HOUR_S)}h",
            lasts_s=body.max_runtime_sec,
            data_parallelism=body.data_parallelism,
            output=version,
            extra={
                "input_data_path": path,
                "output_data_path": body.output_data_path,
                "model_config": {"model": body.config.model},
                "priority": body.priority,
                "metadata": body.metadata,
            },
        )

    reservation: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not batches.exists(batch_id):
        reservation = ArrayOutput(body.output_data_path, batches.files, batch_id).reserve()
    elif path:
        # Don't convert the input again: the file may have changed since the batch was created.
        return batches.create(make_stored_batch(batches.get(batch_id).request.endpoint))
    has_priorities = request.engines.base_model.model.has_priorities
    with reservation:
        input_path = batch_inputs.locate_input_file(path, batches.files) if path else None
        convert = batch_inputs.convert_v1 if version == "llm_engine_v1" else batch_inputs.convert_v2
        url, lines = convert(
            body, input_path, batches.limits, body.scheduler_priority if has_priorities else None
        )
        check_batch_route(url, request.resources)
        try:
            batches.files.receive(lines, filename=f"{batch_id}.jsonl", purpose="batch", id=file_id)
        except InputTooLarge:
            message = "the requests of this batch have more bytes than a file may (FILES_MAX_MB)"
            raise InputTooLarge(f"content: {message}", param="content") from None
        return batches.create(make_stored_batch(url))
