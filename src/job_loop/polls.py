"""Requests that the platform answers when it has something: jobs to take, jobs to stop."""

import asyncio
import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import aiohttp
from aiohttp import (
    ClientConnectionError,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
)
from aiohttp.connector import Connection

from job_loop.taken import parsed
from job_loop.wire import CONNECT_S, UNREACHABLE, Wire, pause_s

T = TypeVar("T")

# Seconds. The platform answers sooner even if it has nothing; the SDK waits as long.
HELD_S = 90.0
# The shortest time from one request that found nothing to the next.
EMPTY_S = 0.1
# After a thaw: how long this process needs to read an answer that has arrived, on a machine that is
# busy, too.
READ_S = 0.25
# At an end: how long the platform may take to answer, or to close, once nothing more is sent to it.
# It does one of both at once, unless something between here and there hides it from the platform.
CLOSING_S = 3.0
# FlashBoot answers 400 where others answer 204.
NOTHING = (204, 400)


class _Request:
    """A request that the platform holds until it has something."""

    def __init__(self, session: ClientSession, url: str) -> None:
        self.begun = time.monotonic()
        self.hung_up = False
        self._answered = False
        self._sent: ClientRequest | None = None
        self.body = asyncio.create_task(self._get(session, url))

    async def hang_up(self, patience_s: float) -> None:
        """Let the platform close the connection, unless it has answered before it knew of this.

        If this process closed it, an answer that is on its way would be lost, with its jobs.

        Args:
            patience_s: how long it may take to do either. An answer that has begun may take longer.
        """
        self.hung_up = True
        response = self._sent.response if self._sent else None
        if response is not None:
            if response.connection is not None:
                _close_for_sending(response.connection)
            await asyncio.wait({self.body}, timeout=patience_s)
        if not self._answered:
            self.body.cancel()

    async def _get(self, session: ClientSession, url: str) -> bytes:
        timeout = ClientTimeout(sock_connect=CONNECT_S, sock_read=HELD_S)
        async with session.get(url, timeout=timeout, middlewares=(self._send,)) as response:
            self._answered = True
            if response.status in NOTHING:
                return b""
            response.raise_for_status()
            return await response.read()

    async def _send(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if self.hung_up:
            # The library asks once more if a connection that it has kept is closed.
            raise ClientConnectionError
        self._sent = request
        return await send(request)


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
        self._request: _Request | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        wire.on_thaw.append(self._on_thaw)

    async def next(self, url: str) -> list[T]:
        """Return what the platform has: nothing if it has nothing, or can't be reached.

        After a failure it returns after a pause, which grows from failure to failure.
        """
        self._request = request = _Request(self._wire.session, url)
        try:
            found = self._read(await parsed(await request.body, self._most_values))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return []  # it was hung up
        except (*UNREACHABLE, ValueError) as error:
            if request.hung_up or isinstance(error, aiohttp.SocketTimeoutError):
                return []  # it was closed, or held for long
            if self._vital:
                self._wire.failed(error)
            self._failures += 1
            await self._pause(pause_s(self._failures))
            return []
        if self._vital:
            self._wire.succeeded()
        self._failures = 0
        if not found:
            await self._pause(request.begun + EMPTY_S - time.monotonic())
        return found

    async def end(self, patience_s: float) -> None:
        """Hang up, and make no pause from then on.

        Args:
            patience_s: how long a request may take, counted from its beginning: what the platform
                has found at once is already on its way.
        """
        self._over.set()
        if (request := self._request) is not None:
            left_s = request.begun + patience_s - time.monotonic()
            await asyncio.wait({request.body}, timeout=max(0.0, left_s))
            await request.hang_up(CLOSING_S)

    def _on_thaw(self) -> None:
        # An answer that arrived during the freeze, or before it, is read after the timers have run.
        if self._request is not None:
            self._hanging_up = asyncio.create_task(self._request.hang_up(READ_S))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()


def _close_for_sending(connection: Connection) -> None:
    transport, protocol = connection.transport, connection.protocol
    if transport is None or protocol is None or transport.is_closing():
        return
    # No other request may be sent on it.
    protocol.force_close()
    # The socket's, since asyncio's TLS can't end one direction only.
    with suppress(OSError), transport.get_extra_info("socket").dup() as half:
        half.shutdown(socket.SHUT_WR)


def _is_cancelled() -> bool:
    """True if the current task is to be cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
