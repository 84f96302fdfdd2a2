"""Long-poll requests to the platform: for jobs to run and for jobs to cancel."""

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
    ClientResponseError,
    ClientSession,
    ClientTimeout,
)

from job_loop.parsing import parse_response
from job_loop.wire import (
    CONNECT_TIMEOUT_S,
    FIRST_REDIRECT,
    NETWORK_ERRORS,
    PlatformClient,
    backoff_s,
)

T = TypeVar("T")

# Seconds to wait for the response to a long poll. The platform responds sooner even if it has no
# items. The SDK uses the same timeout.
LONG_POLL_S = 90.0
# Minimum seconds between the starts of two requests if the first one returned no items.
MIN_INTERVAL_S = 0.1
# Seconds to read a response that arrived before or while this process was frozen (by FlashBoot).
# This time is enough even on a busy machine.
THAW_READ_S = 0.25
# Seconds at shutdown for the platform to respond or to close the connection after this process has
# shut down its sending side. The platform does so immediately unless a proxy hides the shutdown.
CLOSE_TIMEOUT_S = 3.0
# Statuses of a response without items. FlashBoot workers get 400 where other workers get 204.
EMPTY_STATUSES = (204, 400)
REDIRECT = "a redirect, which is not followed"


class _LongPoll:
    """A request to which the platform responds when it has items, or after a while."""

    def __init__(self, session: ClientSession, url: str) -> None:
        self.started_at = time.monotonic()
        self.is_hung_up = False
        self._has_response = False
        self._sent_request: ClientRequest | None = None
        self.body_task = asyncio.create_task(self._fetch_body(session, url))

    async def hang_up(self, timeout_s: float) -> None:
        """End the request, but read a response that is already on the way.

        This process shuts down only its sending side, and the platform then closes the connection.
        If this process closed the connection, it would lose such a response and the jobs in it.
        The platform has ``timeout_s`` to respond; a response that has started is read to its end.
        """
        self.is_hung_up = True
        response = self._sent_request.response if self._sent_request else None
        if response is not None:
            if (connection := response.connection) is not None:
                transport, protocol = connection.transport, connection.protocol
                if transport is not None and protocol is not None and not transport.is_closing():
                    # The connection must not be reused for another request.
                    protocol.force_close()
                    # Shut down a copy of the socket: asyncio's TLS can't close one direction only.
                    with suppress(OSError), transport.get_extra_info("socket").dup() as duplicate:
                        duplicate.shutdown(socket.SHUT_WR)
            await asyncio.wait({self.body_task}, timeout=timeout_s)
        if not self._has_response:
            self.body_task.cancel()

    async def _fetch_body(self, session: ClientSession, url: str) -> bytes:
        timeout = ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=LONG_POLL_S)
        # Jobs come from the platform only, and a redirect could name any host.
        async with session.get(
            url, allow_redirects=False, timeout=timeout, middlewares=(self._track_send,)
        ) as response:
            self._has_response = True
            if response.status in EMPTY_STATUSES:
                return b""
            response.raise_for_status()
            if response.status >= FIRST_REDIRECT:
                raise ClientResponseError(
                    response.request_info, (), status=response.status, message=REDIRECT
                )
            return await response.read()

    async def _track_send(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if self.is_hung_up:
            # Prevent aiohttp from retrying the request on another connection after a hang-up.
            raise ClientConnectionError
        self._sent_request = request
        return await send(request)


class Poller(Generic[T]):
    """Sends one long-poll request after another. Use it on the event loop of its client."""

    def __init__(
        self,
        client: PlatformClient,
        parse: Callable[[Any], list[T]],
        *,
        reports_outages: bool,
        max_values: float = math.inf,
    ) -> None:
        """Find the items in responses, which may be any JSON value, with ``parse``.

        If ``reports_outages``, the client logs outages from failed and successful polls.
        ``max_values`` limits the JSON values in one job.
        """
        self._client = client
        self._parse = parse
        self._reports_outages = reports_outages
        self._max_values = max_values
        self._failures = 0
        self._close_event = asyncio.Event()
        self._request: _LongPoll | None = None
        self._hang_up_task: asyncio.Task[None] | None = None
        client.on_thaw.append(self._hang_up_after_thaw)

    async def poll(self, url: str) -> list[T]:
        """Send a request and return the items in its response; an empty list if the request failed.

        After a failure, sleep before returning, longer after each further failure; hang-ups and
        timeouts are no failures. After an empty response, sleep until ``MIN_INTERVAL_S`` is over.
        """
        self._request = request = _LongPoll(self._client.session, url)
        try:
            items = self._parse(await parse_response(await request.body_task, self._max_values))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return []  # hang_up cancelled the request, and nobody this task
        except (*NETWORK_ERRORS, ValueError) as error:
            if request.is_hung_up or isinstance(error, aiohttp.SocketTimeoutError):
                return []  # the connection was closed, or the long poll timed out
            if self._reports_outages:
                self._client.record_failure(error)
            self._failures += 1
            await self._pause_unless_closed(backoff_s(self._failures))
            return []
        if self._reports_outages:
            self._client.record_success()
        self._failures = 0
        if not items:
            await self._pause_unless_closed(request.started_at + MIN_INTERVAL_S - time.monotonic())
        return items

    async def close(self, min_duration_s: float) -> None:
        """Hang up the current request and skip all later pauses.

        The request lasts for at least ``min_duration_s``: if the platform had jobs when it arrived,
        its response is on the way by then.
        """
        self._close_event.set()
        if (request := self._request) is not None:
            left_s = request.started_at + min_duration_s - time.monotonic()
            await asyncio.wait({request.body_task}, timeout=max(0.0, left_s))
            await request.hang_up(CLOSE_TIMEOUT_S)

    def _hang_up_after_thaw(self) -> None:
        # The delay lets a response be read that arrived before the freeze.
        if self._request is not None:
            self._hang_up_task = asyncio.create_task(self._request.hang_up(THAW_READ_S))

    async def _pause_unless_closed(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._close_event.wait()
