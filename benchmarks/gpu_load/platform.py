"""A minimal platform for the worker, which hands out the callers' requests as jobs."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

import httptools

from gpu_load.callers import Callers
from gpu_load.loads import Order

JOB = b'{"id": "%d", "input": %b}'
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Platform:
    """Hands out jobs, and receives their chunks and results."""

    callers: Callers

    def __init__(self) -> None:
        self._jobs: deque[bytes] = deque()
        self._poll: tuple[WorkerConnection, int] | None = None
        self._stops: list[int] = []
        self._stop_poll: WorkerConnection | None = None

    def content(self, order: Order) -> str:
        return order.job

    def send(self, number: int, body: bytes) -> None:
        self._jobs.append(JOB % (number, body))
        # Later, so that one response has all jobs of the same iteration of the loop.
        asyncio.get_running_loop().call_soon(self._hand_out)

    def stop(self, numbers: Sequence[int]) -> None:
        self._jobs.clear()
        self._stops += numbers
        self._send_stops()

    def receive(self, connection: "WorkerConnection", url: bytes, body: bytes) -> None:
        """Handle a request of the worker."""
        path, _, query = url.partition(b"?")
        route, _, *job = path.split(b"/")[3:]
        if route in (b"job-take", b"job-take-batch"):
            size = query.partition(b"batch_size=")[2].partition(b"&")[0]
            self._poll = connection, int(size or 1)
            self._hand_out()
        elif route == b"job-stop":
            self._stop_poll = connection
            self._send_stops()
        else:
            connection.respond(b"{}")
        if route == b"job-stream":
            self.callers.posts += 1
            if b'"tokens"' in body:  # a raw job's, in which each word is a string
                words = body.count(b'" ')
            else:
                # In addition to the words', there is a space in each event and in the post itself.
                words = body.count(b" ") - body.count(b"data: ") - 1
            self.callers.receive(int(job[0]), words, body)
        elif route == b"job-done":
            self.callers.posts += 1
            # The result of an answer that is not a stream is its only post.
            self.callers.receive(int(job[0]), 0, body)
            self.callers.end(int(job[0]), body.decode() if body.startswith(b'{"error') else "")

    def forget(self, connection: "WorkerConnection") -> None:
        """Send nothing on a connection that was closed."""
        if self._poll and self._poll[0] is connection:
            self._poll = None
        if self._stop_poll is connection:
            self._stop_poll = None

    def _hand_out(self) -> None:
        if self._jobs and self._poll:
            (connection, size), self._poll = self._poll, None
            jobs = [self._jobs.popleft() for _ in range(min(size, len(self._jobs)))]
            connection.respond(b"[%b]" % b", ".join(jobs))

    def _send_stops(self) -> None:
        if self._stops and self._stop_poll:
            ids = ", ".join(f'"{number}"' for number in self._stops)
            self._stop_poll.respond(b'{"jobsToStop": [%b]}' % ids.encode())
            self._stops, self._stop_poll = [], None


class WorkerConnection(asyncio.Protocol):
    """A connection of the worker."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._platform.forget(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, body, self._url, self._body = self._url, self._body, b"", b""
        self._platform.receive(self, url, body)

    def respond(self, body: bytes) -> None:
        self._transport.write(RESPONSE % (len(body), body))
