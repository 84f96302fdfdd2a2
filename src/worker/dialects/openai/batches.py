"""OpenAI's routes for batches.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from worker.batches.finish import settle
from worker.batches.request import kept
from worker.batches.state import Batch
from worker.batches.store import PREFIX
from worker.dialects.openai.listing import Listing
from worker.engine import Engines
from worker.errors import InvalidInput
from worker.job.batch import CreateBatch
from worker.job.openai import OpenAIJob
from worker.routes.resources import Resources
from worker.routes.route import Asked
from worker.volume import ids
from worker.volume.pages import page


class Listed(Listing):
    """A page of the list of batches: what the query has beside these has no effect."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20


async def create(asked: Asked) -> dict[str, Any]:
    """Create a batch of the requests in a file, and start it where that is possible.

    Raises:
        InvalidInput: naming the field.
    """
    request = CreateBatch.of_body(asked.body)
    check_endpoint(request.endpoint, asked.engines)
    batches = asked.resources.batches
    batch_id = ids.derived(PREFIX, asked.request_id)
    asked_for = kept(request, batch_id, request.input_file_id)
    batch = await asyncio.to_thread(batches.create, asked_for)
    return await started(batch, asked.resources, request.data_parallelism)


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a batch."""
    return await asyncio.to_thread(_settled, asked)


async def listed(asked: Asked) -> dict[str, Any]:
    """List batches, the newest first.

    Raises:
        InvalidInput: the limit is no number from 1 to 100.
    """
    asked_for = Listed.read(asked.job.query)
    return await asyncio.to_thread(
        lambda: page(
            asked.resources.batches.all(), after=asked_for.after, limit=asked_for.limit
        ).shown()
    )


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a batch: what has been answered is kept.

    Raises:
        Conflict: it has ended.
    """
    batch = await asyncio.to_thread(_found, asked)
    await asyncio.to_thread(batch.cancel)
    shown = await asyncio.to_thread(_settled, asked)
    return shown if shown["status"] == "cancelled" else await started(batch, asked.resources)


async def started(batch: Batch, resources: Resources, jobs: int = 1) -> dict[str, Any]:
    """Start as many jobs for a batch, and return it: with what to send, if this can't be done."""
    to_send = await resources.begin(batch.work, jobs)
    return {**await asyncio.to_thread(batch.shown), **to_send}


def check_endpoint(endpoint: str, engines: Engines) -> None:
    """Refuse a batch of which every line would be refused.

    Raises:
        InvalidInput: no model that is served has the endpoint.
    """
    # vLLM's server has some of them without /v1.
    paths = (endpoint, OpenAIJob(route=endpoint).path)
    if not any(engine.keys(path) is not None for engine in engines for path in paths):
        names = ", ".join(base.model.names[0] for base in engines.bases)
        message = f"endpoint: this is nothing that {names} can do"
        raise InvalidInput(message, param="endpoint")


def _found(asked: Asked) -> Batch:
    return asked.resources.batches.get(asked.parameters["batch_id"])


def _settled(asked: Asked) -> dict[str, Any]:
    batch = _found(asked)
    settle(asked.resources.batches, batch)
    return batch.shown()
