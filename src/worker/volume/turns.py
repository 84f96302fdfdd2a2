"""Leases as coroutines take them: no loop stands still, and a cancelled one leaves none."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from worker.volume import failures
from worker.volume.lease import LOOK_S, Lease, Leases


class Turns:
    """The leases of some work, as one worker of several takes them. Use on one loop.

    Args:
        place: returns the directory of a lease, by its name.
        progress: returns how much is done and how much there is to do, for others to read.
    """

    def __init__(
        self, place: Callable[[str], Path], progress: Callable[[], tuple[int, int]]
    ) -> None:
        self._place = place
        self._progress = progress
        self._leases: dict[str, Leases] = {}
        self._looked_at: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def taken(self, name: str) -> AsyncGenerator[Lease | None, None]:
        """Take a lease for the block, or yield None: a worker that may live has it.

        To be tried again every ``LOOK_S`` seconds: an owner that is silent for too long is dead.

        Raises:
            VolumeError: the volume can't be written to.
        """
        leases = self._leases.setdefault(name, Leases(self._place(name)))
        taken = leases.taken(self._progress)
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
