"""The connections of asynchronous calls: each event loop keeps its own, from call to call."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType

from llm_worker_client.endpoint import AsyncEndpoint


class Kept:
    """An endpoint that is open until its event loop ends, and the last call with it.

    ``async with`` it for each call.

    Args:
        endpoint: which nobody else closes.
    """

    def __init__(self, endpoint: AsyncEndpoint) -> None:
        self._endpoint = endpoint
        self._calls = 0
        self._over = False

    async def __aenter__(self) -> AsyncEndpoint:
        self._calls += 1
        return self._endpoint

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:
                # The job that was given up is cancelled before the loop may end.
                await self._endpoint.settled()
        finally:
            self._calls -= 1
            await self._close()

    async def end(self) -> None:
        """Close it, now or with its last call."""
        self._over = True
        # Whatever else the loop's end has cut short.
        await self._endpoint.settled()
        await self._close()

    async def _close(self) -> None:
        if self._over and not self._calls:
            await self._endpoint.aclose()


class Loops:
    """An endpoint for each event loop that asks for one.

    Args:
        opened: returns a new one.
    """

    def __init__(self, opened: Callable[[], AsyncEndpoint]) -> None:
        self._opened = opened
        self._kept: dict[asyncio.AbstractEventLoop, tuple[Kept, AsyncGenerator[None]]] = {}

    async def kept(self) -> Kept:
        """Return the endpoint of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            self._kept = {one: kept for one, kept in self._kept.items() if not one.is_closed()}
            kept = Kept(self._opened())
            life = _life(kept)
            await anext(life)
            self._kept[loop] = kept, life
        return self._kept[loop][0]


async def _life(kept: Kept) -> AsyncGenerator[None]:
    """Last until the event loop ends, which ends its generators, or until nobody holds this."""
    try:
        yield
    finally:
        await kept.end()
