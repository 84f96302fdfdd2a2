"""Runs long work in a job, from where the previous job stopped."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Literal

from worker.long_work.records import PAUSED, Record, Records, RecordT
from worker.volume import translate_os_errors
from worker.volume.lease import POLL_S, Lease, LeaseDirectory

# "left": the work is unfinished, and another job has to continue it.
RunOutcome = Literal["ended", "paused", "left"]


class Turn:
    """A job's turn at long work, concurrent with those of other jobs. Use on one event loop.

    Args:
        record: Record of the work.
        limit_s: Seconds from now until the deadline.
        shutdown_time: Returns when the worker's shutdown began, by ``time.monotonic``; infinity
            before that.
        in_background: Whether the worker does the work without a job of the platform.
    """

    def __init__(
        self,
        record: Record,
        limit_s: float,
        shutdown_time: Callable[[], float] = lambda: math.inf,
        *,
        in_background: bool = False,
    ) -> None:
        self.in_background = in_background
        self._record = record
        self._deadline = time.monotonic() + limit_s
        self._shutdown_time = shutdown_time
        self._leases: dict[str, LeaseDirectory] = {}
        self._polled_at: dict[str, float] = {}

    @property
    def deadline(self) -> float:
        """Time by ``time.monotonic`` after which nothing new begins: another job continues."""
        return min(self._deadline, self._shutdown_time())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    @contextlib.asynccontextmanager
    async def acquire_lease(self, name: str) -> AsyncGenerator[Lease | None, None]:
        """Acquire a lease of the work for the block; yield None if another owner may be alive.

        A cancelled job leaves no lease. After None, call this again every ``POLL_S`` seconds: an
        owner that is silent for too long counts as dead.

        Raises:
            VolumeError: The volume can't be written to.
        """
        leases = self._leases.setdefault(name, LeaseDirectory(self._record.lease_directory(name)))
        acquisition = leases.acquire()
        # Shielded: a lease that is acquired while the job is being cancelled must be released.
        acquiring = asyncio.create_task(asyncio.to_thread(acquisition.__enter__))
        try:
            with translate_os_errors():
                lease = await asyncio.shield(acquiring)
            if lease is None and time.monotonic() - self._polled_at.get(name, -POLL_S) >= POLL_S:
                # At most every ``POLL_S``: the owner needs time for a heartbeat between two polls.
                self._polled_at[name] = time.monotonic()
                with translate_os_errors():
                    await asyncio.to_thread(leases.poll_claim)
            yield lease
        finally:
            await asyncio.wait({acquiring})
            if acquiring.exception() is None:
                await asyncio.to_thread(acquisition.__exit__, None, None, None)


# Does a part of the work, and returns True once that is durable. Returns False if other workers are
# doing all remaining parts at the moment.
Step = Callable[[Turn], Awaitable[bool]]


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
    async def take_place(self, id: str, turn: Turn) -> AsyncGenerator[bool, None]:
        """Wait for a place, in the order of the calls, and have it during the block.

        Yield False without a place at the turn's deadline, and after a call of ``wake``.
        """
        self._loop = asyncio.get_running_loop()
        left_s = turn.deadline - time.monotonic()
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
        """End all waits, because the deadline of all turns has come; call from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
                self._loop.call_soon_threadsafe(self.wake)


async def run_steps(
    records: Records[RecordT, Any], record: RecordT, turn: Turn, step: Step, line: WorkLine
) -> RunOutcome:
    """Run steps until the work has ended or is paused, or until the turn is over after a step.

    Without a job (``Turn.in_background``), leave the work to other workers that run it.

    Raises:
        WorkerError: The engine is dead, or the volume fails. Another job can continue the work.
    """
    while True:
        async with line.take_place(record.id, turn) as has_place:
            while not await asyncio.to_thread(records.end_if_due, record):
                if await asyncio.to_thread(record.stop_reason) == PAUSED:
                    return "paused"
                has_worked = has_place and await step(turn)
                if turn.is_over:
                    return "ended" if await asyncio.to_thread(record.has_ended) else "left"
                if not has_worked:
                    break
            else:
                return "ended"
            if turn.in_background and await asyncio.to_thread(record.is_running):
                return "left"
        if has_place:
            # Other workers do the rest at the moment. Meanwhile, other work may have the place.
            await asyncio.sleep(POLL_S)
