"""Jobs that run a fine-tune: a child process of the worker trains the adapter."""

import asyncio
import time
from typing import Any

from worker.dialects.openai.fine_tuning import job_object
from worker.errors import InvalidInput, OnOtherVolume
from worker.fine_tunes.creation import FineTuneCreator
from worker.fine_tunes.step import WIND_DOWN_S, FineTuneStep
from worker.job import FineTuneJob
from worker.long_work.records import WorkReference
from worker.long_work.runner import run_steps
from worker.progress import Progress
from worker.routes.answer import Answer, answer_by_worker
from worker.routes.long_work import pass_on
from worker.routes.resources import Resources


def make_answer(
    job: FineTuneJob, request_id: str, resources: Resources, time_limit: float
) -> Answer[Any]:
    """Return the answer to a job that runs a fine-tune; it contains OpenAI's fine-tuning job.

    The answer comes when the fine-tune ends or is paused, or at the time limit. The limit and the
    id of a new fine-tune are as for batches (``batch_jobs.make_answer``).
    """
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
        body = {"fine_tune": await asyncio.to_thread(job_object, fine_tune)}
        return (
            body | await resources.start_long_jobs(fine_tune.work_reference)
            if outcome == "left" and not spec.background
            else body
        )

    return answer_by_worker(run_and_describe, slot=None, progress=progress)
