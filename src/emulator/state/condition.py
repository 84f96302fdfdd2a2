"""A condition variable for one event loop."""

import asyncio
from collections.abc import Callable


class Condition:
    """Like ``asyncio.Condition``, without a lock and with a timeout. Free while nobody waits."""

    def __init__(self) -> None:
        # A dict for its order: the longest waiting is woken first.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def notify_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the predicate holds; return False if the timeout comes first."""
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
