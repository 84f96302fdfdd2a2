"""Runs long work in a job, from where the previous job stopped."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from worker.long_work.attempt import Attempt
from worker.long_work.record import PAUSED
from worker.long_work.records import Records, RecordT
from worker.volume.lease import POLL_S

# "left": the work is unfinished, and another job has to continue it.
RunOutcome = Literal["ended", "paused", "left"]
# Does a part of the work, and returns True once that is durable. Returns False if other workers are
# doing all remaining parts at the moment.
Step = Callable[[Attempt], Awaitable[bool]]


async def run_steps(
    records: Records[RecordT, Any], record: RecordT, attempt: Attempt, step: Step
) -> RunOutcome:
    """Run steps until the work has ended or is paused, or until the attempt is over after a step.

    Raises:
        WorkerError: The engine is dead, or the volume fails. Another job can continue the work.
    """
    while not await asyncio.to_thread(records.end_if_due, record):
        if await asyncio.to_thread(record.stop_reason) == PAUSED:
            return "paused"
        if not await step(attempt):
            await asyncio.sleep(POLL_S)
        if attempt.is_over:
            return "ended" if await asyncio.to_thread(record.has_ended) else "left"
    return "ended"
