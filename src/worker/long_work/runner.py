"""Runs long work in a job, from where the previous job stopped."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
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


class WorkLine:
    """The line in which the jobs of one kind of long work wait until this worker runs them.

    A job that waits has no lease, no thread and no slot of the engine, and polls nothing. Use on
    one event loop, except ``close``.

    Args:
        places: Number of jobs that run concurrently.
    """

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._waits: set[tuple[str, asyncio.Timeout]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting_count(self) -> int:
        """Number of jobs that wait."""
        return len(self._waits)

    @contextlib.asynccontextmanager
    async def take_place(self, id: str, attempt: Attempt) -> AsyncGenerator[bool, None]:
        """Wait for a place, in the order of the calls, and have it during the block.

        Yield False without a place at the attempt's deadline, and after a call of ``wake``.
        """
        self._loop = asyncio.get_running_loop()
        left_s = attempt.deadline - time.monotonic()
        try:
            async with asyncio.timeout(left_s if left_s < math.inf else None) as timeout:
                wait = id, timeout
                self._waits.add(wait)
                try:
                    await self._places.acquire()
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._places.release()

    def wake(self, id: str | None = None) -> None:
        """End the waits of the jobs for changed work; by default, all waits."""
        for waiting_id, timeout in self._waits:
            if id in {None, waiting_id}:
                timeout.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """End all waits, because the deadline of all attempts has come; call from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
                self._loop.call_soon_threadsafe(self.wake)


async def run_steps(
    records: Records[RecordT, Any], record: RecordT, attempt: Attempt, step: Step, line: WorkLine
) -> RunOutcome:
    """Run steps until the work has ended or is paused, or until the attempt is over after a step.

    Without a job (``Attempt.in_background``), leave the work to other workers that run it.

    Raises:
        WorkerError: The engine is dead, or the volume fails. Another job can continue the work.
    """
    while True:
        async with line.take_place(record.id, attempt) as has_place:
            while not await asyncio.to_thread(records.end_if_due, record):
                if await asyncio.to_thread(record.stop_reason) == PAUSED:
                    return "paused"
                has_worked = has_place and await step(attempt)
                if attempt.is_over:
                    return "ended" if await asyncio.to_thread(record.has_ended) else "left"
                if not has_worked:
                    break
            else:
                return "ended"
            if attempt.in_background and await asyncio.to_thread(record.is_running):
                return "left"
        if has_place:
            # Other workers do the rest at the moment. Meanwhile, other work may have the place.
            await asyncio.sleep(POLL_S)
