"""The process of the callers, who record when the tokens of their answers arrive.

It is a minimal platform for the worker, or clients of vLLM's server. Its CPU time is measured,
since it shares the machine with the side. For each line of its input, which is a load with the text
of its requests, it prints "begin" and "end" for the window of the load, and "measured" with the
figures.

    python -m gpu_load.callers platform PORT   # its port, for the worker
    python -m gpu_load.callers clients PORT    # the server's port
"""

import asyncio
import json
import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

import bench  # noqa: F401 - makes src importable
import httptools
import uvloop

from gpu_load.loads import NUMBER, Load
from proof.measure.loads import Answer, percentile
from proof.measure.processes import Lost, print_line

JOB = b'{"id": "%d", "input": %b}'
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class Link(Protocol):
    """The connections between the callers and a side."""

    def send(self, number: int, body: bytes) -> None: ...

    def stop(self, numbers: Sequence[int]) -> None:
        """Cancel the requests with these numbers."""


class Callers:
    """The callers of one load.

    Args:
        load: The load.
        template: The text of each request, with a placeholder for its number.
        number: Number of the first request.
        link: The connections to the side.
    """

    def __init__(self, load: Load, template: str, number: int, link: Link) -> None:
        self.next_number = number
        self.posts = 0
        self._bytes = 0
        self._load = load
        self._template = template.encode().split(NUMBER.encode())
        self._link = link
        # The keys of a chat's usage and of a raw job's.
        keys = rb'(?:completion_tokens\\?"|"output")'
        self._usage = re.compile(rb"%b: ?%d\b" % (keys, load.tokens))
        self._running: dict[int, Answer] = {}
        self._answers: list[Answer] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> dict[str, float]:
        """Start all callers, print the begin and the end of the window, and return its figures.

        Raises:
            Lost: If an answer is an error, or lacks tokens.
        """
        load, began = self._load, time.monotonic()
        for caller in range(load.streams):
            self._call()
            await self._watch(began + (caller + 1) * load.ramp_s / load.streams)
        began, self.posts, self._bytes = time.monotonic(), 0, 0
        print_line("begin")
        await self._watch(began + load.window_s)
        ended, posts, received = time.monotonic(), self.posts, self._bytes
        print_line("end")
        running, self._running = self._running, {}
        self._link.stop([*running])
        figures = _figures(load, self._answers, began, ended) if load.stream else {}
        if load.stream:
            tokens = figures["tokens_per_s"] * (ended - began)
            figures["bytes_a_token"] = received / tokens
            if posts:
                figures["tokens_a_post"] = tokens / posts
        return {"began": began, "ended": ended, **figures}

    def receive(self, number: int, words: int, data: bytes) -> None:
        """Record a part of an answer with its number of words; ignore a cancelled answer."""
        self._bytes += len(data)
        if answer := self._running.get(number):
            if words and self._load.stream:
                answer.arrivals.append((time.monotonic(), words))
            if self._usage.search(data):
                answer.tokens = self._load.tokens

    def end(self, number: int, error: str = "") -> None:
        """Record the end of an answer, and send the next request."""
        if answer := self._running.pop(number, None):
            if (error or not self._is_whole(answer)) and not self._failure.done():
                self._failure.set_exception(Lost(error or "an answer lacks tokens"))
            self._call()

    def _call(self) -> None:
        number = self.next_number
        self.next_number += 1
        self._running[number] = answer = Answer(time.monotonic())
        self._answers.append(answer)
        self._link.send(number, str(number).encode().join(self._template))

    def _is_whole(self, answer: Answer) -> bool:
        """Return whether vLLM counted all tokens of an answer, and the caller each as a word."""
        words = sum(count for _, count in answer.arrivals)
        has_words = words == self._load.tokens or self._load.calls_tool or not self._load.stream
        return answer.tokens == self._load.tokens and has_words

    async def _watch(self, until: float) -> None:
        """Wait until a time of the monotonic clock; raise if an answer fails."""
        await asyncio.wait({self._failure}, timeout=max(0.0, until - time.monotonic()))
        if self._failure.done():
            await self._failure


def _figures(load: Load, answers: Sequence[Answer], began: float, ended: float) -> dict[str, float]:
    """Return the figures of streams in a window: medians, and a percentile of all gaps."""
    parts = [
        Answer(answer.sent, [(at, count) for at, count in answer.arrivals if began < at <= ended])
        for answer in answers
    ]
    paces = [
        sum(count for _, count in part.arrivals[1:]) / (part.arrivals[-1][0] - part.arrivals[0][0])
        for part in parts
        if len(part.arrivals) > 1
    ]
    firsts = [
        1000 * (answer.arrivals[0][0] - answer.sent)
        for answer in answers
        if answer.arrivals and answer.arrivals[0][0] > began
    ]
    tokens = sum(count for part in parts for _, count in part.arrivals)
    return {
        "tokens_per_s": tokens / (ended - began),
        "pace": percentile(paces, 0.5) / load.pace,
        "first_p50": percentile(firsts, 0.5),
        "gap_p99": percentile([1000 * gap for part in parts for gap in part.gaps], 0.99),
    }


class Platform:
    """Hands out jobs, and receives their chunks and results."""

    callers: Callers

    def __init__(self) -> None:
        self._jobs: deque[bytes] = deque()
        self._poll: tuple[WorkerConnection, int] | None = None
        self._stops: list[int] = []
        self._stop_poll: WorkerConnection | None = None

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


class Clients:
    """Send each request on a free connection, or on a new one."""

    callers: Callers

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[ServerConnection] = []
        self._all: list[ServerConnection] = []
        self._connecting: set[asyncio.Task[None]] = set()

    def send(self, number: int, body: bytes) -> None:
        if self._free:
            self._free.pop().request(number, body)
        else:
            task = asyncio.create_task(self._connect_and_request(number, body))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def stop(self, _: Sequence[int]) -> None:
        """Close all connections, whose requests vLLM then cancels."""
        for connection in self._all:
            connection.close()

    def end(self, connection: "ServerConnection", number: int, error: str) -> None:
        self._free.append(connection)
        self.callers.end(number, error)

    async def _connect_and_request(self, number: int, body: bytes) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ServerConnection(self), "127.0.0.1", self._port
        )
        self._all.append(connection)
        connection.request(number, body)


class ServerConnection(asyncio.Protocol):
    """A connection to the server, on which each request follows the answer to the last one."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the class.
        self._transport = cast(asyncio.Transport, transport)

    def request(self, number: int, body: bytes) -> None:
        self._number, self._words, self._newlines = number, 0, 0
        self._is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(REQUEST % (len(body), body))

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data = b""
        self._parser.feed_data(data)
        # In addition to the words', each event has a space. It ends with two newlines, which may
        # arrive separately.
        events, self._newlines = divmod(self._newlines + self._data.count(b"\n"), 2)
        self._clients.callers.receive(self._number, self._data.count(b" ") - events, self._data)
        if self._is_complete:
            is_error = self._parser.get_status_code() != 200
            self._clients.end(self, self._number, self._data.decode() if is_error else "")

    def on_body(self, body: bytes) -> None:
        self._data += body

    def on_message_complete(self) -> None:
        self._is_complete = True


async def main(kind: str, port: int) -> None:
    platform = Platform()
    if kind == "platform":
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: WorkerConnection(platform), "127.0.0.1", port)
    number = 1
    while line := await asyncio.to_thread(sys.stdin.readline):
        values, template = json.loads(line)
        link = platform if kind == "platform" else Clients(port)
        link.callers = callers = Callers(Load(**values), template, number, link)
        figures = await callers.run()
        number = callers.next_number
        print_line("measured", json.dumps(figures, separators=(",", ":")))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
