"""HTTP/1.1 connections for the worker's posts, which stay open between posts.

A general HTTP client takes several times the CPU time for a post, in the process whose interpreter
lock the engine's thread needs, too. These posts need only a status: no redirects, no cookies, no
content.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from socket import SOCK_STREAM
from typing import cast
from urllib.parse import quote

import httptools
from aiohappyeyeballs import start_connection
from yarl import URL

# Seconds after which an unused connection is closed, before a gateway closes it.
KEEP_ALIVE_S = 15.0
# Seconds between attempts to connect to the next one of a host's addresses.
NEXT_ADDRESS_S = 0.25
# Placeholder for a job's id in the platform's URLs.
JOB_ID = "$ID"


@dataclass(frozen=True, slots=True)
class Origin:
    """The server of a URL."""

    host: str
    port: int
    is_secure: bool


class PostRequest:
    """The bytes of a post, except for its content.

    ``$ID`` in the URL and in the headers' values is a placeholder for the job's id.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parsed = URL(url)
        self.origin = Origin(parsed.host or "", parsed.port or 0, parsed.scheme == "https")
        lines = [f"POST {parsed.raw_path_qs} HTTP/1.1", f"Host: {parsed.host_port_subcomponent}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode()

    def encode(self, job_id: str, content: bytes) -> bytes:
        # A job's id must not end the request line or a header.
        head = self._head.replace(JOB_ID.encode(), quote(job_id, safe="").encode())
        return b"%b%d\r\n\r\n%b" % (head, len(content), content)


class Connection(asyncio.Protocol):
    """A connection that sends one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._response: asyncio.Future[int] | None = None
        self._status = 0
        self.is_reusable = True
        self.idle_since = 0.0

    async def send(self, request: bytes, timeout_s: float) -> int:
        """Send a request and return its status; raise ``OSError`` without a valid one in time."""
        loop = asyncio.get_running_loop()
        self._status = 0
        response: asyncio.Future[int] = loop.create_future()
        self._response = response
        timer = loop.call_later(timeout_s, self._fail, TimeoutError())
        try:
            self._transport.write(request)
            return await response
        finally:
            timer.cancel()
            self._response = None
            if not self.is_reusable or response.cancelled():
                self.close()

    def close(self) -> None:
        self.is_reusable = False
        self._transport.abort()

    # The methods below are called by the event loop and by the parser.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            # For example the server's last words before it closes an unused connection.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the response is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def on_message_begin(self) -> None:
        # The next request would otherwise get this message, which follows a complete response.
        if self._response is None or self._response.done():
            self.is_reusable = False

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        # Informational responses precede the actual one.
        if self._status < 200:
            return
        self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
        self._resolve()

    def _fail(self, error: Exception) -> None:
        self.is_reusable = False
        # The status is enough: a response that breaks off after it is not a failure.
        if self._status >= 200:
            self._resolve()
        elif self._response and not self._response.done():
            self._response.set_exception(error)
        self._transport.abort()

    def _resolve(self) -> None:
        if self._response and not self._response.done():
            self._response.set_result(self._status)


class ConnectionPool:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self._idle: dict[Origin, deque[Connection]] = {}

    async def acquire(self, origin: Origin, timeout_s: float) -> Connection:
        """Return an idle connection, or a new one within ``timeout_s``. Release it after use."""
        idle = self._idle.setdefault(origin, deque())
        oldest_use = time.monotonic() - KEEP_ALIVE_S
        while idle and (idle[0].idle_since < oldest_use or not idle[0].is_reusable):
            idle.popleft().close()
        # Use the connection that was used last, so that the others expire when there is less to do.
        while idle:
            if (connection := idle.pop()).is_reusable:
                return connection
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            addresses = await loop.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM)
            sock = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_S)
            try:
                _, connection = await loop.create_connection(
                    Connection,
                    sock=sock,
                    ssl=self._ssl_context if origin.is_secure else None,
                    server_hostname=origin.host if origin.is_secure else None,
                )
            except BaseException:
                sock.close()
                raise
        return connection

    def release(self, origin: Origin, connection: Connection) -> None:
        if connection.is_reusable:
            connection.idle_since = time.monotonic()
            self._idle[origin].append(connection)

    def close_idle(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context()
