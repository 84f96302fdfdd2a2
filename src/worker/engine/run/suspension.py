"""The state of an engine's suspension, without vLLM: unit tests suspend engines of their own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from worker.errors import EngineSuspended


class Suspension:
    """Who suspends the engine, and who waits for its end. Use on one loop."""

    def __init__(self) -> None:
        # Callers suspend the engine one at a time.
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()
        self._ended.set()
        self._timeout_s = 0.0
        # Whether the engine is suspended, and all processes of its core have exited.
        self.is_vacant = False

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    @contextlib.asynccontextmanager
    async def suspend(self, timeout_s: float) -> AsyncIterator[None]:
        async with self._lock:
            self._timeout_s = timeout_s
            self._ended.clear()
            try:
                yield
            finally:
                self.is_vacant = False
                self._ended.set()

    async def vacate_until_resumed(self) -> None:
        """If the engine is suspended, mark it as vacant (the core is removed); wait for the end."""
        if self.is_active:
            self.is_vacant = True
            await self._ended.wait()

    async def wait_until_resumed(self) -> None:
        """See ``Engine.wait_until_resumed``."""
        if not self.is_active:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._ended.wait()
        except TimeoutError:
            raise EngineSuspended from None
