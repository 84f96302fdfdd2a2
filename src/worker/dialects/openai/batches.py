"""OpenAI's routes for batches.

The first line of a route's docstring is its summary in /openapi.json.
"""

import asyncio
from typing import Any

from worker.batches.record import Batch, StoredBatch
from worker.dialects.openai import objects
from worker.dialects.openai.listing import NewestFirstQuery, make_list_object
from worker.job.batch import CreateBatch
from worker.routes.long_work import cancel_batch, check_batch_route
from worker.routes.resources import Resources
from worker.routes.route import RouteRequest


async def create(request: RouteRequest) -> dict[str, Any]:
    """Create a batch of the requests in a file, and start it if possible.

    Raises:
        InvalidInput: A field is invalid. The message names the field.
    """
    body = CreateBatch.from_body(request.body)
    check_batch_route(body.endpoint, request.resources)
    batches = request.resources.batches
    batch_id = batches.id_for_job(request.request_id)
    stored_batch = StoredBatch.from_request(body, batch_id, body.input_file_id)
    batch = await asyncio.to_thread(batches.create, stored_batch)
    run_with = await request.resources.start_long_jobs(batch.work_reference, body.data_parallelism)
    return {**await asyncio.to_thread(_describe, batch, request.resources), **run_with}


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a batch, and who runs it."""
    id, resources = request.path_params["batch_id"], request.resources
    return await asyncio.to_thread(
        lambda: _describe(resources.batches.get_ended_if_due(id), resources)
    )


async def list_batches(request: RouteRequest) -> dict[str, Any]:
    """List batches, the newest first.

    Raises:
        InvalidInput: The limit is not a number from 1 to 100.
    """
    page_query = NewestFirstQuery.from_query(request.job.query_params)
    batches = request.resources.batches

    def make_page() -> dict[str, Any]:
        page = batches.list_newest(after=page_query.after, limit=page_query.limit)
        return make_list_object(page, lambda batch: _describe(batch, request.resources))

    return await asyncio.to_thread(make_page)


async def cancel(request: RouteRequest) -> dict[str, Any]:
    """Cancel a batch; the responses so far are retained.

    Raises:
        Conflict: The batch has already ended.
    """
    batch = await asyncio.to_thread(request.resources.batches.get, request.path_params["batch_id"])
    run_with = await cancel_batch(batch, request.resources)
    return {**await asyncio.to_thread(_describe, batch, request.resources), **run_with}


def _describe(batch: Batch, resources: Resources) -> dict[str, Any]:
    return {**objects.batch(batch), **resources.describe_run(batch)}
