"""Waking those who wait for a change."""

import asyncio
from collections.abc import Callable


class Signal:
    """Wakes those who wait for a change. Costs nothing while nobody waits."""

    def __init__(self) -> None:
        # A dict for its order: who waits longest is woken first.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def fire(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the predicate holds; False where the time is up first."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    waiter = loop.create_future()
                    self._waiters[waiter] = None
                    try:
                        await waiter
                    finally:
                        self._waiters.pop(waiter, None)
        except TimeoutError:
            return predicate()
        return True
