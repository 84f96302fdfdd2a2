"""OpenAI's routes for batches."""

import asyncio
from typing import Any

from worker.batches.record import Batch, StoredBatch
from worker.dialects.openai.listing import NewestFirstQuery, make_list_object
from worker.job.batch import CreateBatch
from worker.routes.long_work import cancel_batch, check_batch_route
from worker.routes.resources import Resources
from worker.routes.route import RouteRequest


async def create(request: RouteRequest) -> dict[str, Any]:
    """Create a batch of the requests in a file, and start it if possible."""
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
    """List batches, the newest first."""
    page_query = NewestFirstQuery.from_query(request.job.query_params)
    batches = request.resources.batches

    def make_page() -> dict[str, Any]:
        page = batches.list_newest(after=page_query.after, limit=page_query.limit)
        return make_list_object(page, lambda batch: _describe(batch, request.resources))

    return await asyncio.to_thread(make_page)


async def cancel(request: RouteRequest) -> dict[str, Any]:
    """Cancel a batch; the responses so far are retained."""
    batch = await asyncio.to_thread(request.resources.batches.get, request.path_params["batch_id"])
    run_with = await cancel_batch(batch, request.resources)
    return {**await asyncio.to_thread(_describe, batch, request.resources), **run_with}


def _describe(batch: Batch, resources: Resources) -> dict[str, Any]:
    return {**batch_object(batch), **resources.describe_run(batch)}


def batch_object(record: Batch) -> dict[str, Any]:
    """Return a batch object. Reads files, so call it in a thread."""
    snapshot = record.snapshot()
    request, counts = snapshot.request, snapshot.counts
    ended_at = {snapshot.status: snapshot.ended_at}
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": request.endpoint,
        "errors": {"object": "list", "data": snapshot.mistakes} if snapshot.mistakes else None,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "status": snapshot.status,
        "output_file_id": snapshot.output_file_id,
        "error_file_id": snapshot.error_file_id,
        "created_at": request.created_at,
        "in_progress_at": snapshot.planned_at,
        "expires_at": request.expires_at,
        "finalizing_at": snapshot.ending_at,
        "completed_at": ended_at.get("completed"),
        "failed_at": ended_at.get("failed"),
        "expired_at": ended_at.get("expired"),
        "cancelling_at": snapshot.cancelled_at,
        "cancelled_at": ended_at.get("cancelled"),
        "request_counts": {
            "total": snapshot.total,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "usage": {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt_tokens + counts.output_tokens,
        },
        "metadata": request.metadata,
    }
