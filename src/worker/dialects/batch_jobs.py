"""Jobs that run a batch: each of its lines goes the OpenAI path, in this process."""

import asyncio
import contextlib
import json
from typing import Any

from worker.batches.record import Batch, StoredBatch
from worker.batches.shard import Ask
from worker.batches.step import SPARE_S, BatchStep
from worker.dialects import table
from worker.dialects.openai import objects
from worker.errors import NoEngine
from worker.job import BatchJob, Budget
from worker.job.openai import BatchLine
from worker.long_work import runner
from worker.record import Usage
from worker.routes.answer import Answer, answer_by_worker
from worker.routes.long_work import check_endpoint
from worker.routes.resources import Resources
from worker.validation import of_field
from worker.volume import ids

# Of lines, where requests are computed by their priority: callers' own have 0, and come first.
PRIORITY = 100

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def answer(job: BatchJob, request_id: str, resources: Resources, seconds: float) -> Answer[Any]:
    """Return the answer to a job that runs a batch: the batch, when it has ended or the time has.

    Args:
        job: the batch.
        request_id: from which its id follows, so that the same job goes on with the same batch.
        resources: what lines are answered with.
        seconds: that the job may take, unless it says so itself.

    Raises:
        RequestError: no line could be answered.
    """
    spec, batches = job.batch, resources.batches
    if not resources.engines.serve:
        raise NoEngine
    if spec.id is None:
        check_endpoint(spec.endpoint, resources.engines)
    progress: dict[str, float] = {"done": 0, "total": 0, "failed": 0}
    usage = Usage()

    async def run() -> dict[str, Any]:
        batch, others = await asyncio.to_thread(_find, job, request_id, resources)
        await resources.begin(batch.work, others)
        attempt = resources.attempt(batch, (spec.max_runtime_sec or seconds) - SPARE_S)
        step = BatchStep(batches, batch, _ask(resources), resources.window, progress)
        how = await runner.run(batches, batch, attempt, step)
        found = {"batch": await asyncio.to_thread(objects.batch, batch)}
        counts = found["batch"]["usage"]
        usage.add(counts["input_tokens"], counts["output_tokens"])
        return found | await resources.begin(batch.work) if how == "left" else found

    return answer_by_worker(run, progress=progress.copy, usage=usage)


def _find(job: BatchJob, request_id: str, resources: Resources) -> tuple[Batch, int]:
    """Find a job's batch, or create it: then with the number of jobs that are to share it."""
    spec, batches = job.batch, resources.batches
    if spec.id is not None:
        return batches.get(spec.id), 0
    batch_id = batches.id_of(request_id)
    file_id = ids.derived("file-", batch_id)
    if spec.input_file_id is not None:
        file_id = spec.input_file_id
    elif spec.input_path is not None:
        with of_field("input_path"):
            batches.files.refer(spec.input_path, purpose="batch", id=file_id)
    else:
        # As they came: what is no JSON has its line among the mistakes.
        texts = (
            (_encode(line) + "\n").encode(errors="surrogatepass") for line in spec.requests or ()
        )
        batches.files.receive(texts, filename=f"{batch_id}.jsonl", purpose="batch", id=file_id)
    others = 0 if batches.has(batch_id) else spec.data_parallelism - 1
    return batches.create(StoredBatch.of(spec, batch_id, file_id)), others


def _ask(resources: Resources) -> Ask:
    budget = Budget.of(resources.settings)
    by_priority = any(engine.model.by_priority for engine in resources.engines)

    async def ask(url: str, body: dict[str, Any], name: str) -> tuple[Any, Usage]:
        budget.check(body)
        if by_priority:
            body = {"priority": PRIORITY, **body}
        reply = table.answer(BatchLine(route=url, method="POST", body=body), name, resources)
        async with contextlib.aclosing(reply.pieces()) as pieces:
            values = [piece.value async for piece in pieces]
        return reply.render(values), reply.usage

    return ask
