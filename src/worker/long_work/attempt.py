"""A job's attempt at long work, with its deadline and its leases."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable

from worker.long_work.record import Record
from worker.volume import translate_os_errors
from worker.volume.lease import POLL_S, Lease, LeaseDirectory


class Attempt:
    """A job's attempt at long work, concurrent with those of other jobs. Use on one event loop.

    Args:
        record: Record of the work.
        limit_s: Seconds from now until the deadline of the attempt.
        shutdown_time: Returns when the worker's shutdown began, by ``time.monotonic``; infinity
            before that.
        in_background: Whether the worker attempts the work without a job of the platform.
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
