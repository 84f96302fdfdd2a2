"""Jobs that run a fine-tune: it is trained in a process beside this one."""

import asyncio
import time
from typing import Any

from worker.dialects.openai import objects
from worker.fine_tunes.creation import Creator, check_base
from worker.fine_tunes.record import FineTune
from worker.fine_tunes.step import SPARE_S, train
from worker.job import FineTuneJob
from worker.routes.answer import Answer, answer_by_worker
from worker.routes.resources import Resources


def answer(job: FineTuneJob, request_id: str, resources: Resources, seconds: float) -> Answer[Any]:
    """Return the answer to a job that runs a fine-tune: it, when it has ended or the time has.

    Args:
        job: the fine-tune.
        request_id: from which its id follows, so that the same job goes on with the same one.
        resources: what it is trained with.
        seconds: that the job may take, unless it says so itself.

    Raises:
        InvalidInput: this worker does not train.
    """
    workshop = resources.training
    progress: dict[str, float] = {"step": 0, "epochs": 0}

    async def run() -> dict[str, Any]:
        # To fetch the rows takes some of the job's time.
        began = time.monotonic()
        fine_tune = await _find(job, request_id, resources)
        await asyncio.to_thread(check_base, fine_tune, resources.engines.base.model)
        left = (job.fine_tune.max_runtime_sec or seconds) - (time.monotonic() - began)
        attempt = resources.attempt(fine_tune, left - SPARE_S)
        how = await train(resources.fine_tunes, fine_tune, workshop, attempt, progress)
        found = {"fine_tune": await asyncio.to_thread(objects.fine_tuning_job, fine_tune)}
        return found | await resources.begin(fine_tune.work) if how == "left" else found

    return answer_by_worker(run, progress=progress.copy)


async def _find(job: FineTuneJob, request_id: str, resources: Resources) -> FineTune:
    """Find a job's fine-tune, or create it."""
    spec, fine_tunes, base = job.fine_tune, resources.fine_tunes, resources.engines.base
    if spec.id is not None:
        return await asyncio.to_thread(fine_tunes.get, spec.id)
    adapters = await base.adapters_on_volume()
    creator = Creator.of(fine_tunes, base.model, resources.settings)
    return await creator.acreate(spec, fine_tunes.id_of(request_id), adapters)
