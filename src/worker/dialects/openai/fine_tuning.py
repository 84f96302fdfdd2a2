"""OpenAI's routes for fine-tuning jobs.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from worker.dialects.openai import own
from worker.dialects.openai.listing import Listing
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.events import events
from worker.fine_tunes.faces import openai
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX
from worker.job.fine_tune import CreateFineTune
from worker.routes.route import Asked
from worker.volume import ids
from worker.volume.pages import page

JOBS = "/v1/fine_tuning/jobs"
JOB = "/v1/fine_tuning/jobs/{fine_tuning_job_id}"
ID = "fine_tuning_job_id"


class Listed(Listing):
    """A page of a list: what the query has beside these has no effect."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20


async def create(asked: Asked) -> dict[str, Any]:
    """Create a fine-tuning job, and start it where that is possible.

    Raises:
        InvalidInput: naming the field.
    """
    fine_tune, found = await created(CreateFineTune.of_body(asked.body), asked)
    return {**await asyncio.to_thread(openai.job, fine_tune), **found}


async def listed(asked: Asked) -> dict[str, Any]:
    """List fine-tuning jobs, the newest first.

    Raises:
        InvalidInput: the limit is no number from 1 to 100.
    """
    query = asked.job.query
    listing = Listed.read(query)
    wanted = {
        key.removeprefix("metadata[").removesuffix("]"): value
        for key, value in query.items()
        if key.startswith("metadata[") and key.endswith("]")
    }

    def found() -> dict[str, Any]:
        jobs = [
            openai.Job(fine_tune)
            for fine_tune in asked.resources.fine_tunes.all()
            if wanted.items() <= (fine_tune.request.metadata or {}).items()
        ]
        return page(jobs, after=listing.after, limit=listing.limit).shown()

    return await asyncio.to_thread(found)


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a fine-tuning job."""
    return await asyncio.to_thread(lambda: openai.job(_settled(asked)))


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a fine-tuning job, for good.

    Raises:
        Conflict: it has ended, or its adapter is being published.
    """
    return await asyncio.to_thread(_changed, asked, FineTune.cancel)


async def pause(asked: Asked) -> dict[str, Any]:
    """Pause a fine-tuning job after a checkpoint.

    Raises:
        Conflict: it has ended or was stopped, or its adapter is being published.
    """
    return await asyncio.to_thread(_changed, asked, FineTune.pause)


async def resume(asked: Asked) -> dict[str, Any]:
    """Let a paused fine-tuning job go on.

    Raises:
        Conflict: it is not paused.
        InvalidInput: nothing is trained here.
    """
    asked.resources.check_training()
    shown = await asyncio.to_thread(_changed, asked, FineTune.resume)
    fine_tune = await asyncio.to_thread(found_in, asked)
    return {**shown, **await asked.resources.begin(fine_tune.work)}


async def told(asked: Asked) -> dict[str, Any]:
    """List what a fine-tuning job has told, the newest first."""
    listing = Listed.read(asked.job.query)
    return await asyncio.to_thread(
        lambda: page(events(_settled(asked)), after=listing.after, limit=listing.limit).shown()
    )


async def checkpoints(asked: Asked) -> dict[str, Any]:
    """List the adapters of a fine-tuning job's epochs, the newest first."""
    listing = Listed.read(asked.job.query)
    return await asyncio.to_thread(
        lambda: page(
            openai.checkpoints(_settled(asked)), after=listing.after, limit=listing.limit
        ).shown()
    )


async def created(request: CreateFineTune, asked: Asked) -> tuple[FineTune, dict[str, Any]]:
    """Create a fine-tune and start it; return what to send, too, where that can't be done.

    Raises:
        InvalidInput: naming the field.
    """
    resources, model = asked.resources, asked.engines.base.model
    resources.check_training()
    adapters = set[str]()
    if request.model not in (*model.names, model.source):
        # Only who names no base model needs an engine, which may make room for a training.
        cards = (await own.models(asked))["data"]
        adapters = {card["id"] for card in cards if card["parent"]}
    creator = Creator.of(resources.fine_tunes, model, asked.settings)
    id = ids.derived(PREFIX, asked.request_id)
    fine_tune = await creator.acreate(request, id, adapters)
    return fine_tune, await resources.begin(fine_tune.work)


def found_in(asked: Asked, name: str = ID) -> FineTune:
    """Find the fine-tune that a path names.

    Raises:
        NoSuchObject: there is none.
    """
    return asked.resources.fine_tunes.get(asked.parameters[name])


def _settled(asked: Asked) -> FineTune:
    fine_tune = found_in(asked)
    fine_tune.settle()
    return fine_tune


def _changed(asked: Asked, change: Callable[[FineTune], None]) -> dict[str, Any]:
    fine_tune = found_in(asked)
    change(fine_tune)
    fine_tune.settle()
    return openai.job(fine_tune)
