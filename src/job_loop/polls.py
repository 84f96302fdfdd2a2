"""Requests that the platform answers when it has something: jobs to take, jobs to stop."""

import asyncio
import contextlib
import json
import logging
import time
from typing import Any

from aiohttp import ClientTimeout

from job_loop.wire import CONNECT_S, UNREACHABLE, Wire, pause_s

log = logging.getLogger(__name__)

# Seconds. The platform answers sooner even if it has nothing; the SDK waits as long.
HELD_S = 90.0
# The shortest time from one request that found nothing to the next.
EMPTY_S = 0.1
# How long a request is kept after a thaw: an answer that came during the freeze is read first.
THAW_PATIENCE_S = 0.1
# FlashBoot answers 400 where others answer 204.
NOTHING = (204, 400)


class Polls:
    """One poll after another, each with an answer or a failure. Use on the wire's loop."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._failures = 0
        self._over = asyncio.Event()
        self._begun = 0.0
        self._answered = False
        self._request: asyncio.Task[Any] | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        wire.on_thaw.append(self._on_thaw)

    async def next(self, url: str) -> Any:
        """Return what the platform answers; None if it has nothing, or can't be reached.

        After a failure it returns after a pause, which grows from failure to failure.
        """
        self._begun, self._answered = time.monotonic(), False
        self._request = asyncio.create_task(self._get(url))
        try:
            found = await self._request
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return None  # it was hung up
        except (*UNREACHABLE, ValueError) as error:
            self._wire.failed(error)
            self._failures += 1
            await self._pause(pause_s(self._failures))
            return None
        self._wire.succeeded()
        self._failures = 0
        if not found:
            await self._pause(self._begun + EMPTY_S - time.monotonic())
        return found

    async def end(self, patience_s: float) -> None:
        """Hang up, unless an answer has begun to arrive, and make no pause from then on.

        Args:
            patience_s: how long a request may take, counted from its beginning: what the platform
                has found at once is already on its way.
        """
        self._over.set()
        await self._hang_up(self._begun + patience_s - time.monotonic())

    def _on_thaw(self) -> None:
        self._hanging_up = asyncio.create_task(self._hang_up(THAW_PATIENCE_S))

    async def _hang_up(self, patience_s: float) -> None:
        """Cancel the present request, unless its answer begins to arrive within so many seconds."""
        request = self._request
        if request is None:
            return
        await asyncio.wait({request}, timeout=max(0.0, patience_s))
        # The event loop reads what has arrived.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if request is self._request and not self._answered:
            request.cancel()

    async def _get(self, url: str) -> Any:
        timeout = ClientTimeout(sock_connect=CONNECT_S, sock_read=HELD_S)
        async with self._wire.session.get(url, timeout=timeout) as response:
            self._answered = True
            if response.status in NOTHING:
                return None
            response.raise_for_status()
            return json.loads(await response.read() or b"null")

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()


def _is_cancelled() -> bool:
    """True if the current task is to be cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
