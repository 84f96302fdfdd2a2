"""A job's attempt at long work: how long it may take, and its leases."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable

from worker.long_work.record import Record
from worker.volume import failures
from worker.volume.lease import LOOK_S, Lease, Leases


class Attempt:
    """A job's attempt at some work, at which others may be, too. Use on one loop.

    Args:
        record: the work.
        seconds: that it may take, from now on.
        closed_at: returns when the worker began to stop, by ``time.monotonic``; infinity: it runs.
    """

    def __init__(
        self, record: Record, seconds: float, closed_at: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._record = record
        self._deadline = time.monotonic() + seconds
        self._closed_at = closed_at
        self._leases: dict[str, Leases] = {}
        self._looked_at: dict[str, float] = {}

    @property
    def until(self) -> float:
        """When nothing more is begun, by ``time.monotonic``: another job goes on."""
        return min(self._deadline, self._closed_at())

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    @contextlib.asynccontextmanager
    async def lease(self, name: str) -> AsyncGenerator[Lease | None, None]:
        """Take the lease of a part for the block, or yield None: a worker that may live has it.

        No loop stands still meanwhile, and a cancelled job leaves no lease. To be tried again every
        ``LOOK_S`` seconds: an owner that is silent for too long is dead.

        Raises:
            VolumeError: the volume can't be written to.
        """
        leases = self._leases.setdefault(name, Leases(self._record.leases(name)))
        taken = leases.taken()
        # Shielded: a lease that is taken while the job is cancelled has to be released.
        taking = asyncio.create_task(asyncio.to_thread(taken.__enter__))
        try:
            with failures():
                lease = await asyncio.shield(taking)
            if lease is None and time.monotonic() - self._looked_at.get(name, -LOOK_S) >= LOOK_S:
                # Not more often: an owner has to have beaten meanwhile.
                self._looked_at[name] = time.monotonic()
                with failures():
                    await asyncio.to_thread(leases.look)
            yield lease
        finally:
            await asyncio.wait({taking})
            if taking.exception() is None:
                await asyncio.to_thread(taken.__exit__, None, None, None)
