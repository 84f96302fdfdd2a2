"""OpenAI's routes for batches.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from typing import Any

from worker.batches.record import StoredBatch
from worker.dialects.openai import objects
from worker.dialects.openai.listing import NewestFirst
from worker.job.batch import CreateBatch
from worker.routes.long_work import cancel_batch, check_endpoint
from worker.routes.route import Asked


async def create(asked: Asked) -> dict[str, Any]:
    """Create a batch of the requests in a file, and start it where that is possible.

    Raises:
        InvalidInput: naming the field.
    """
    request = CreateBatch.of_body(asked.body)
    check_endpoint(request.endpoint, asked.engines)
    batches = asked.resources.batches
    batch_id = batches.id_of(asked.request_id)
    asked_for = StoredBatch.of(request, batch_id, request.input_file_id)
    batch = await asyncio.to_thread(batches.create, asked_for)
    to_send = await asked.resources.begin(batch.work, request.data_parallelism)
    return {**await asyncio.to_thread(objects.batch, batch), **to_send}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a batch."""
    id, batches = asked.parameters["batch_id"], asked.resources.batches
    return await asyncio.to_thread(lambda: objects.batch(batches.get_settled(id)))


async def list_batches(asked: Asked) -> dict[str, Any]:
    """List batches, the newest first.

    Raises:
        InvalidInput: the limit is no number from 1 to 100.
    """
    listing = NewestFirst.read(asked.job.query)
    batches = asked.resources.batches
    return await asyncio.to_thread(lambda: listing.of(batches.all(), objects.batch))


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a batch: what has been answered is kept.

    Raises:
        Conflict: it has ended.
    """
    batch = await asyncio.to_thread(asked.resources.batches.get, asked.parameters["batch_id"])
    to_send = await cancel_batch(batch, asked.resources)
    return {**await asyncio.to_thread(objects.batch, batch), **to_send}
