"""Requests that the platform answers when it has something: jobs to take, jobs to stop."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import aiohttp
from aiohttp import ClientTimeout

from job_loop.taken import parsed
from job_loop.wire import CONNECT_S, UNREACHABLE, Wire, pause_s

T = TypeVar("T")

# Seconds. The platform answers sooner even if it has nothing; the SDK waits as long.
HELD_S = 90.0
# The shortest time from one request that found nothing to the next.
EMPTY_S = 0.1
# How long this process needs to read an answer that has arrived, on a machine that is busy, too.
READ_S = 0.25
# FlashBoot answers 400 where others answer 204.
NOTHING = (204, 400)


class Polls(Generic[T]):
    """One request after another, each for a list. Use on the wire's loop."""

    def __init__(
        self,
        wire: Wire,
        read: Callable[[Any], list[T]],
        *,
        vital: bool,
        most_values: float = math.inf,
    ) -> None:
        """Make polls.

        Args:
            wire: to the platform.
            read: finds the items in an answer, whatever JSON that is.
            vital: whether the platform counts as unreachable when they fail.
            most_values: of a job in an answer.
        """
        self._wire = wire
        self._read = read
        self._vital = vital
        self._most_values = most_values
        self._failures = 0
        self._over = asyncio.Event()
        self._begun = 0.0
        self._answered = False
        self._request: asyncio.Task[list[T]] | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        wire.on_thaw.append(self._on_thaw)

    async def next(self, url: str) -> list[T]:
        """Return what the platform has: nothing if it has nothing, or can't be reached.

        After a failure it returns after a pause, which grows from failure to failure.
        """
        self._begun, self._answered = time.monotonic(), False
        self._request = asyncio.create_task(self._get(url))
        try:
            found = await self._request
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return []  # it was hung up
        except aiohttp.SocketTimeoutError:
            return []  # it was held for long
        except (*UNREACHABLE, ValueError) as error:
            if self._vital:
                self._wire.failed(error)
            self._failures += 1
            await self._pause(pause_s(self._failures))
            return []
        if self._vital:
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
        if self._request is not None:
            left_s = max(READ_S, self._begun + patience_s - time.monotonic())
            await self._hang_up(self._request, left_s)

    def _on_thaw(self) -> None:
        # An answer that arrived during the freeze, or before it, is read after the timers have run.
        if self._request is not None:
            self._hanging_up = asyncio.create_task(self._hang_up(self._request, READ_S))

    async def _hang_up(self, request: asyncio.Task[list[T]], patience_s: float) -> None:
        await asyncio.wait({request}, timeout=patience_s)
        if request is self._request and not self._answered:
            request.cancel()

    async def _get(self, url: str) -> list[T]:
        timeout = ClientTimeout(sock_connect=CONNECT_S, sock_read=HELD_S)
        async with self._wire.session.get(url, timeout=timeout) as response:
            self._answered = True
            if response.status in NOTHING:
                return []
            response.raise_for_status()
            return self._read(await parsed(await response.read(), self._most_values))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()


def _is_cancelled() -> bool:
    """True if the current task is to be cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
