"""Jobs that run long work: a batch, or a fine-tune.

The answer to such a job comes when the work ends or is paused, or when the job's time limit is
reached: the job's own limit, or else ``time_limit`` seconds. At the limit, another job is started
to continue the work; if that fails, the answer contains that job's input (``run_with``). The id of
new work is derived from the id of the request, so that a retried job continues the same work.
"""

import asyncio
import contextlib
import time
from typing import Any

from worker.batches.record import Batch, StoredBatch
from worker.batches.run import WIND_DOWN_S, AnswerRequest, BatchStep
from worker.dialects import table
from worker.dialects.openai.batches import batch_object
from worker.dialects.openai.fine_tuning import job_object
from worker.errors import InvalidInput, NoEngine, OnOtherVolume, WorkerError
from worker.job import BatchJob, FineTuneJob
from worker.job.openai import BatchLine
from worker.json_lines import encode_unchecked_line
from worker.limits.inputs import check_size
from worker.long_work.records import WorkReference
from worker.long_work.runner import run_steps
from worker.progress import Progress
from worker.record import UNANSWERED, EngineUse, JobRecord, Usage, engine_use
from worker.routes.answer import Answer, answer_by_worker
from worker.routes.long_work import check_batch_route, pass_on
from worker.routes.resources import Resources
from worker.validation import name_field_in_errors

# Default priority of batch lines in the engine's scheduler; other requests have 0 and come first.
LINE_PRIORITY = 100


def make_batch_answer(
    job: BatchJob, request_id: str, resources: Resources, time_limit: float
) -> Answer[Any]:
    """Return the answer to a job that runs a batch; it contains OpenAI's batch object."""
    spec, batches = job.batch, resources.batches
    if not resources.engines.has_engine:
        raise NoEngine
    if spec.id is None:
        check_batch_route(spec.endpoint, resources)
    progress = Progress(done=0, total=0, failed=0)
    usage = Usage()

    async def run_and_describe() -> dict[str, Any]:
        limit = spec.max_runtime_sec or time_limit
        if spec.id is None:
            batch, other_jobs = await asyncio.to_thread(_create_batch, job, request_id, resources)
            await resources.start_long_jobs(batch.work_reference, other_jobs)
        else:
            try:
                batch = await asyncio.to_thread(batches.get, spec.id)
            except OnOtherVolume as error:
                work = WorkReference(job.kind, spec.id, spec.passes)
                return await pass_on(work, error, resources, limit)
        answer_line = await asyncio.to_thread(_make_line_answerer, batch, resources)
        step = BatchStep(batches, batch, answer_line, resources.window, progress)
        line = resources.lines[job.kind]
        async with resources.open_turn(
            batch, limit - WIND_DOWN_S, in_background=spec.background
        ) as turn:
            outcome = await run_steps(batches, batch, turn, step, line)
        answer = {"batch": await asyncio.to_thread(batch_object, batch)}
        counts = answer["batch"]["usage"]
        usage.add(counts["input_tokens"], counts["output_tokens"])
        if outcome == "left" and not spec.background:
            answer |= await resources.start_long_jobs(batch.work_reference)
        return answer

    return answer_by_worker(run_and_describe, slot=None, progress=progress, usage=usage)


def _create_batch(job: BatchJob, request_id: str, resources: Resources) -> tuple[Batch, int]:
    """Create a job's batch, unless it exists; also return how many more jobs to start for it."""
    spec, batches = job.batch, resources.batches
    batch_id = batches.id_for_job(request_id)
    batches.check_room_for(batch_id)
    file_id = batches.volume.location.derive_id("file-", batch_id)
    if spec.input_file_id is not None:
        file_id = spec.input_file_id
    elif spec.input_path is not None:
        with name_field_in_errors("input_path"):
            batches.files.add_volume_file(spec.input_path, purpose="batch", id=file_id)
    else:
        # The lines are written unchecked: the batch lists an invalid line among its errors later.
        lines = map(encode_unchecked_line, spec.requests or ())
        batches.files.receive(lines, filename=f"{batch_id}.jsonl", purpose="batch", id=file_id)
        # The job may wait for hours, and does not need them any more.
        (spec.requests or []).clear()
    other_jobs = 0 if batches.exists(batch_id) else spec.data_parallelism - 1
    return batches.create(StoredBatch.from_request(spec, batch_id, file_id)), other_jobs


def _make_line_answerer(batch: Batch, resources: Resources) -> AnswerRequest:
    """Return the function that answers a batch's lines. Reads a file, so call it in a thread."""
    labels = batch.request.metadata or {}
    job_use = engine_use.get(EngineUse())
    max_megabytes = resources.settings.max_input_mb
    has_priorities = any(engine.model.has_priorities for engine in resources.engines)

    async def answer_line(url: str, body: dict[str, Any], request_id: str) -> tuple[Any, Usage]:
        check_size(body, max_megabytes)
        if has_priorities:
            body = {"priority": LINE_PRIORITY, **body}
        line = BatchLine(route=url, method="POST", body=body)
        user, line_labels = line.receipt_names
        record = JobRecord(request_id, route=url, status=UNANSWERED, batch=batch.id, user=user)
        record.labels = {**labels, **line_labels}
        record.use = job_use.create_part()
        engine_use.set(record.use)
        try:
            result = table.make_answer(line, request_id, resources)
            record.usage = result.usage
            async with contextlib.aclosing(result.pieces()) as parts:
                pieces = [piece async for piece in parts]
            record.status, record.first_piece_at = 200, pieces[0].produced_at
            answer = [result.render([piece.value for piece in pieces])]
            if line.receipt:
                answer = result.add_receipt(answer, resources.receipts.create(record))
        except WorkerError as error:
            record.status = error.status
            raise
        finally:
            resources.receipts.store(record)
        return answer[0], result.usage

    return answer_line


def make_fine_tune_answer(
    job: FineTuneJob, request_id: str, resources: Resources, time_limit: float
) -> Answer[Any]:
    """Return the answer to a job that runs a fine-tune; it contains OpenAI's fine-tuning job."""
    # Most workers never run a fine-tune.
    from worker.fine_tunes.creation import FineTuneCreator  # noqa: PLC0415 - see above
    from worker.fine_tunes.step import WIND_DOWN_S, FineTuneStep  # noqa: PLC0415 - see above

    resources.check_training_enabled()
    fine_tunes, base = resources.fine_tunes, resources.engines.base_model
    spec, progress = job.fine_tune, Progress(step=0, epochs=0)

    async def run_and_describe() -> dict[str, Any]:
        limit = spec.max_runtime_sec or time_limit
        # Fetching the rows counts towards the job's time limit.
        started_at = time.monotonic()
        if spec.id is None:
            adapters = await base.adapter_problems_on_volume()
            creator = FineTuneCreator.from_settings(fine_tunes, base.model, resources.settings)
            id = fine_tunes.id_for_job(request_id)
            fine_tune = await creator.create_in_thread(spec, id, adapters)
            # The job may wait for hours, and does not need them any more.
            (spec.rows or []).clear()
        else:
            try:
                fine_tune = await asyncio.to_thread(fine_tunes.get, spec.id)
            except OnOtherVolume as error:
                work = WorkReference(job.kind, spec.id, spec.passes)
                return await pass_on(work, error, resources, limit)
        request = await asyncio.to_thread(lambda: fine_tune.request)
        if request.base not in base.model.names:
            raise InvalidInput(
                f"{fine_tune.id} is a fine-tune of {request.base!r}, "
                f"and this worker has {base.model.names[0]}."
            )
        progress.update(epochs=request.spec.epochs)
        mode = resources.training_mode
        step = FineTuneStep(
            fine_tunes,
            fine_tune,
            base,
            resources.settings,
            progress,
            reserve_memory=resources.engines.suspend if mode == "exclusive" else None,
            low_priority=mode == "beside",
        )
        remaining = limit - (time.monotonic() - started_at)
        line = resources.lines[job.kind]
        async with resources.open_turn(
            fine_tune, remaining - WIND_DOWN_S, in_background=spec.background
        ) as turn:
            outcome = await run_steps(fine_tunes, fine_tune, turn, step, line)
        answer = {"fine_tune": await asyncio.to_thread(job_object, fine_tune)}
        if outcome == "left" and not spec.background:
            answer |= await resources.start_long_jobs(fine_tune.work_reference)
        return answer

    return answer_by_worker(run_and_describe, slot=None, progress=progress)
