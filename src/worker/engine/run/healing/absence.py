"""The time in which an engine is set aside: requests wait, and something else has its memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from worker.errors import EngineAside


class Absence:
    """Whether an engine is set aside now. Use on one loop."""

    def __init__(self) -> None:
        # One caller after the other sets it aside.
        self._turn = asyncio.Lock()
        self._over = asyncio.Event()
        self._over.set()
        self._patience_s = 0.0
        # Whether nothing is left of the engine's core.
        self.vacant = False

    @property
    def lasts(self) -> bool:
        """Whether there is one now."""
        return not self._over.is_set()

    @contextlib.asynccontextmanager
    async def begun(self, patience_s: float) -> AsyncIterator[None]:
        """Let requests wait for the time of this block, each for so many seconds at most."""
        async with self._turn:
            self._patience_s = patience_s
            self._over.clear()
            try:
                yield
            finally:
                self.vacant = False
                self._over.set()

    async def kept(self) -> None:
        """Say that nothing is left of a core; return when another one may be started."""
        if self.lasts:
            self.vacant = True
            await self._over.wait()

    async def admit(self) -> None:
        """See ``Engine.admit``."""
        if not self.lasts:
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await self._over.wait()
        except TimeoutError:
            raise EngineAside from None
