"""OpenAI's routes for fine-tuning jobs.

The first line of a route's docstring is its summary in /openapi.json.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worker.dialects.openai import objects
from worker.dialects.openai.listing import NewestFirstQuery, make_list_object
from worker.job.fine_tune import CreateFineTune
from worker.long_work.record import WorkReference
from worker.routes.long_work import create_and_start_fine_tune
from worker.routes.route import RouteRequest

if TYPE_CHECKING:
    from worker.fine_tunes.record import FineTune

JOBS_PATH = "/v1/fine_tuning/jobs"
ID_PARAMETER = "fine_tuning_job_id"
JOB_PATH = "/v1/fine_tuning/jobs/{fine_tuning_job_id}"


async def create(request: RouteRequest) -> dict[str, Any]:
    """Create a fine-tuning job, and start it if possible.

    Raises:
        InvalidInput: A field is invalid. The message names the field.
    """
    body = CreateFineTune.from_body(request.body)
    fine_tune, run_with = await create_and_start_fine_tune(body, request)
    return {**await asyncio.to_thread(_describe, fine_tune, request), **run_with}


async def list_jobs(request: RouteRequest) -> dict[str, Any]:
    """List fine-tuning jobs, the newest first.

    Raises:
        InvalidInput: The limit is not a number from 1 to 100.
    """
    query = request.job.query_params
    page_query = NewestFirstQuery.from_query(query)
    metadata = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in query.items()
        if key.startswith("metadata[") and key.endswith("]")
    }

    def has_metadata(fine_tune: "FineTune") -> bool:
        return not metadata or metadata.items() <= (fine_tune.request.metadata or {}).items()

    def make_page() -> dict[str, Any]:
        page = request.resources.fine_tunes.list_newest(
            after=page_query.after, limit=page_query.limit, accepts=has_metadata
        )
        return make_list_object(page, lambda fine_tune: _describe(fine_tune, request))

    return await asyncio.to_thread(make_page)


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a fine-tuning job, and who runs it."""
    return await asyncio.to_thread(lambda: _describe(_find_job(request), request))


async def cancel(request: RouteRequest) -> dict[str, Any]:
    """Cancel a fine-tuning job permanently.

    Raises:
        Conflict: The job has ended, or its adapter is being published.
    """
    return await _change_job(request, lambda fine_tune: fine_tune.cancel())


async def pause(request: RouteRequest) -> dict[str, Any]:
    """Pause a fine-tuning job after a checkpoint.

    Raises:
        Conflict: The job has ended, or is already paused, cancelled or being published.
    """
    return await _change_job(request, lambda fine_tune: fine_tune.pause())


async def resume(request: RouteRequest) -> dict[str, Any]:
    """Resume a paused fine-tuning job.

    Raises:
        Conflict: The job is not paused.
        InvalidInput: This worker does not train.
    """
    request.resources.check_training_enabled()
    job = await _change_job(request, lambda fine_tune: fine_tune.resume())
    return {**job, **await request.resources.start_long_jobs(WorkReference("fine_tune", job["id"]))}


async def list_events(request: RouteRequest) -> dict[str, Any]:
    """List the events of a fine-tuning job, the newest first."""
    query = NewestFirstQuery.from_query(request.job.query_params)
    return await asyncio.to_thread(
        lambda: query.make_page(_find_job(request).events(), objects.event)
    )


async def list_checkpoints(request: RouteRequest) -> dict[str, Any]:
    """List the adapters of a fine-tuning job's epochs, the newest first."""
    query = NewestFirstQuery.from_query(request.job.query_params)
    return await asyncio.to_thread(
        lambda: query.make_page(objects.usable_checkpoints(_find_job(request)), objects.checkpoint)
    )


def _describe(fine_tune: "FineTune", request: RouteRequest) -> dict[str, Any]:
    return {**objects.fine_tuning_job(fine_tune), **request.resources.describe_run(fine_tune)}


def _find_job(request: RouteRequest) -> "FineTune":
    return request.resources.fine_tunes.get_ended_if_due(request.path_params[ID_PARAMETER])


async def _change_job(
    request: RouteRequest, change: "Callable[[FineTune], None]"
) -> dict[str, Any]:
    id, fine_tunes = request.path_params[ID_PARAMETER], request.resources.fine_tunes

    def change_and_describe() -> dict[str, Any]:
        fine_tune = fine_tunes.get(id)
        change(fine_tune)
        fine_tunes.end_if_due(fine_tune)
        return _describe(fine_tune, request)

    job = await asyncio.to_thread(change_and_describe)
    request.resources.lines["fine_tune"].wake(id)
    return job
