"""Jobs that run a fine-tune: it is trained in a process beside this one."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from worker.chunking import Piece
from worker.dialects.openai import objects
from worker.fine_tunes.attempt import Progress
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.given import check_base
from worker.fine_tunes.runner import Runner
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX
from worker.job import FineTuneJob
from worker.routes.answer import Answer
from worker.routes.resources import Resources
from worker.volume import ids


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
    workshop, progress = resources.training, Progress()

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        # To fetch the rows takes some of the job's time.
        began = time.monotonic()
        fine_tune = await _fine_tune(job, request_id, resources)
        await asyncio.to_thread(check_base, fine_tune, resources.engines.base.model)
        runner = Runner(fine_tune, workshop, progress)
        most = job.fine_tune.max_runtime_sec or seconds
        how = await runner.run(most - (time.monotonic() - began))
        found = {"fine_tune": await asyncio.to_thread(objects.fine_tuning_job, fine_tune)}
        if how == "left":
            found |= await resources.begin(fine_tune.work)
        yield Piece(found, weight=1, size=0)

    return Answer(
        stream=False,
        pieces=pieces,
        render=lambda values: values[0],
        by_worker=True,
        progress=progress.shown,
    )


async def _fine_tune(job: FineTuneJob, request_id: str, resources: Resources) -> FineTune:
    """Find a job's fine-tune, or create it."""
    spec, fine_tunes, base = job.fine_tune, resources.fine_tunes, resources.engines.base
    if spec.id is not None:
        return await asyncio.to_thread(fine_tunes.get, spec.id)
    adapters = await base.adapters_on_volume()
    creator = Creator.of(fine_tunes, base.model, resources.settings)
    id = ids.derived(PREFIX, request_id)
    return await creator.acreate(spec, id, adapters)
