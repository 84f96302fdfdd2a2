"""OpenAI's routes for fine-tuning jobs.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worker.dialects.openai import objects
from worker.dialects.openai.listing import NewestFirst
from worker.job.fine_tune import CreateFineTune
from worker.long_work.kinds import LongWork
from worker.routes.long_work import create_fine_tune
from worker.routes.route import Asked

if TYPE_CHECKING:
    from worker.fine_tunes.record import FineTune

JOBS = "/v1/fine_tuning/jobs"
ID = "fine_tuning_job_id"
JOB = "/v1/fine_tuning/jobs/{fine_tuning_job_id}"


async def create(asked: Asked) -> dict[str, Any]:
    """Create a fine-tuning job, and start it where that is possible.

    Raises:
        InvalidInput: naming the field.
    """
    request = CreateFineTune.of_body(asked.body)
    fine_tune, to_send = await create_fine_tune(request, asked)
    return {**await asyncio.to_thread(objects.fine_tuning_job, fine_tune), **to_send}


async def list_jobs(asked: Asked) -> dict[str, Any]:
    """List fine-tuning jobs, the newest first.

    Raises:
        InvalidInput: the limit is no number from 1 to 100.
    """
    query = asked.job.query
    listing = NewestFirst.read(query)
    wanted = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in query.items()
        if key.startswith("metadata[") and key.endswith("]")
    }

    def page() -> dict[str, Any]:
        jobs = [
            fine_tune
            for fine_tune in asked.resources.fine_tunes.all()
            if wanted.items() <= (fine_tune.request.metadata or {}).items()
        ]
        return listing.of(jobs, objects.fine_tuning_job)

    return await asyncio.to_thread(page)


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a fine-tuning job."""
    return await asyncio.to_thread(lambda: objects.fine_tuning_job(_settle(asked)))


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a fine-tuning job, for good.

    Raises:
        Conflict: it has ended, or its adapter is being published.
    """
    return await asyncio.to_thread(_change, asked, lambda one: one.cancel())


async def pause(asked: Asked) -> dict[str, Any]:
    """Pause a fine-tuning job after a checkpoint.

    Raises:
        Conflict: it has ended or was stopped, or its adapter is being published.
    """
    return await asyncio.to_thread(_change, asked, lambda one: one.pause())


async def resume(asked: Asked) -> dict[str, Any]:
    """Let a paused fine-tuning job go on.

    Raises:
        Conflict: it is not paused.
        InvalidInput: nothing is trained here.
    """
    asked.resources.check_training()
    job = await asyncio.to_thread(_change, asked, lambda one: one.resume())
    return {**job, **await asked.resources.begin(LongWork("fine_tune", job["id"]))}


async def list_events(asked: Asked) -> dict[str, Any]:
    """List what a fine-tuning job has told, the newest first."""
    listing = NewestFirst.read(asked.job.query)
    return await asyncio.to_thread(lambda: listing.of(_settle(asked).events(), objects.event))


async def list_checkpoints(asked: Asked) -> dict[str, Any]:
    """List the adapters of a fine-tuning job's epochs, the newest first."""
    listing = NewestFirst.read(asked.job.query)
    return await asyncio.to_thread(
        lambda: listing.of(objects.checkpoints(_settle(asked)), objects.checkpoint)
    )


def _settle(asked: Asked) -> "FineTune":
    return asked.resources.fine_tunes.get_settled(asked.parameters[ID])


def _change(asked: Asked, change: "Callable[[FineTune], None]") -> dict[str, Any]:
    fine_tunes = asked.resources.fine_tunes
    fine_tune = fine_tunes.get(asked.parameters[ID])
    change(fine_tune)
    fine_tunes.settle(fine_tune)
    return objects.fine_tuning_job(fine_tune)
