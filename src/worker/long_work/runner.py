"""Runs long work in a job, from wherever it was left."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from worker.long_work.attempt import Attempt
from worker.long_work.record import PAUSED
from worker.long_work.records import R, Records
from worker.volume.lease import LOOK_S

# "left": another job has to go on.
How = Literal["ended", "paused", "left"]
# Does a part of the work, and returns True once that is durable; False: others have all that is
# left, for the moment.
Step = Callable[[Attempt], Awaitable[bool]]


async def run(records: Records[R, Any], one: R, attempt: Attempt, step: Step) -> How:
    """Do steps until the work has ended or is paused, or the attempt is over: at least one.

    Raises:
        WorkerError: the engine is dead, or the volume fails: another job can go on.
    """
    while not await asyncio.to_thread(records.settle, one):
        if await asyncio.to_thread(one.stopping) == PAUSED:
            return "paused"
        if not await step(attempt):
            await asyncio.sleep(LOOK_S)
        if attempt.over:
            return "ended" if await asyncio.to_thread(one.ended) else "left"
    return "ended"
