"""Jobs that run a batch or a fine-tune, and answer with it when it has ended or the time has.

Each line of a batch goes the OpenAI path, in this process. A fine-tune is trained in a process
beside this one.
"""

import asyncio
import contextlib
import json
import time
from typing import Any

from worker.batches import runner as batch_runner
from worker.batches.request import kept
from worker.batches.shard import Ask
from worker.batches.state import Batch
from worker.batches.store import PREFIX as BATCH
from worker.dialects import table
from worker.dialects.openai import objects
from worker.errors import NoEngine
from worker.fine_tunes import attempt
from worker.fine_tunes import runner as fine_tune_runner
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX as FINE_TUNE
from worker.fine_tunes.workshop import check_base
from worker.job import BatchJob, Budget, FineTuneJob
from worker.job.openai import BatchLine
from worker.record import Usage
from worker.routes.answer import Answer, answer_by_worker
from worker.routes.long_work import check_endpoint
from worker.routes.resources import Resources
from worker.validation import of_field
from worker.volume import ids

# Of lines, where requests are computed by their priority: callers' own have 0, and come first.
PRIORITY = 100

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def run_batch(job: BatchJob, request_id: str, resources: Resources, seconds: float) -> Answer[Any]:
    """Return the answer to a job that runs a batch.

    Args:
        job: the batch.
        request_id: from which its id follows, so that the same job goes on with the same batch.
        resources: what lines are answered with.
        seconds: that the job may take, unless it says so itself.

    Raises:
        RequestError: no line could be answered.
    """
    spec = job.batch
    if not resources.engines.serve:
        raise NoEngine
    if spec.id is None:
        check_endpoint(spec.endpoint, resources.engines)
    progress, usage = batch_runner.Progress(), Usage()

    async def run() -> dict[str, Any]:
        batch, others = await asyncio.to_thread(_find_batch, job, request_id, resources)
        await resources.begin(batch.work, others)
        window, ask = resources.window, _ask(resources)
        runner = batch_runner.Runner(resources.batches, batch, ask, window, progress)
        ended = await runner.run(spec.max_runtime_sec or seconds)
        found = {"batch": await asyncio.to_thread(objects.batch, batch)}
        counts = found["batch"]["usage"]
        usage.add(counts["input_tokens"], counts["output_tokens"])
        return found if ended else found | await resources.begin(batch.work)

    return answer_by_worker(run, progress=progress.shown, usage=usage)


def run_fine_tune(
    job: FineTuneJob, request_id: str, resources: Resources, seconds: float
) -> Answer[Any]:
    """Return the answer to a job that runs a fine-tune; its arguments are those of ``run_batch``.

    Raises:
        InvalidInput: this worker does not train.
    """
    workshop, progress = resources.training, attempt.Progress()

    async def run() -> dict[str, Any]:
        # To fetch the rows takes some of the job's time.
        began = time.monotonic()
        fine_tune = await _find_fine_tune(job, request_id, resources)
        await asyncio.to_thread(check_base, fine_tune, resources.engines.base.model)
        runner = fine_tune_runner.Runner(fine_tune, workshop, progress)
        most = job.fine_tune.max_runtime_sec or seconds
        how = await runner.run(most - (time.monotonic() - began))
        found = {"fine_tune": await asyncio.to_thread(objects.fine_tuning_job, fine_tune)}
        return found | await resources.begin(fine_tune.work) if how == "left" else found

    return answer_by_worker(run, progress=progress.shown)


def _find_batch(job: BatchJob, request_id: str, resources: Resources) -> tuple[Batch, int]:
    """Find a job's batch, or create it: then with the number of jobs that are to share it."""
    spec, batches = job.batch, resources.batches
    if spec.id is not None:
        return batches.get(spec.id), 0
    batch_id = ids.derived(BATCH, request_id)
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
    return batches.create(kept(spec, batch_id, file_id)), others


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


async def _find_fine_tune(job: FineTuneJob, request_id: str, resources: Resources) -> FineTune:
    """Find a job's fine-tune, or create it."""
    spec, fine_tunes, base = job.fine_tune, resources.fine_tunes, resources.engines.base
    if spec.id is not None:
        return await asyncio.to_thread(fine_tunes.get, spec.id)
    adapters = await base.adapters_on_volume()
    creator = Creator.of(fine_tunes, base.model, resources.settings)
    return await creator.acreate(spec, ids.derived(FINE_TUNE, request_id), adapters)
