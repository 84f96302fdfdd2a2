"""How the hub on loopback sends files: recorded to the byte, and with faults if a test sets some.

Recorded bytes have been handed to the system. If the connection broke, the last of them may never
have reached the client.
"""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import accumulate
from pathlib import Path

from aiohttp import ClientConnectionError, web

# The most bytes sent at once; on a throttled line, the most seconds' worth of them. That much lost
# time is made up for.
PIECE = 64 * 1024
PIECE_S = 0.02
# Seconds between two looks at whether a stalled file may go on.
STALL_LOOK_S = 0.02


@dataclass
class Sent:
    """A range of a file as far as it was sent: `end` moves on with every piece."""

    repository: str
    path: str
    start: int
    end: int


@dataclass
class Files:
    """What was sent of files, and the faults with which they are sent."""

    sent: list[Sent] = field(default_factory=list)
    # In bytes per second, of all connections together.
    throttle: float | None = None
    # The connection is cut after so many bytes of an answer: `cuts` times, or always.
    cut_after: int | None = None
    cuts: int | None = None
    # Paths of files whose last byte is sent wrong.
    wrong: set[str] = field(default_factory=set)
    # Paths of files of which answers stop in the middle while the connection stays open.
    stalled: set[str] = field(default_factory=set)
    # Paths of files that are answered with a status alone.
    statuses: dict[str, int] = field(default_factory=dict)
    # Requests for more bytes at once are answered with 400, as the hub's are for very large files.
    longest: int | None = None
    # Requests for a range are answered with the whole file.
    ignores_ranges: bool = False
    # When the throttled line is free again, on the monotonic clock.
    _free: float = 0.0

    def transferred(self, repository: str, path: str) -> int:
        """Count the bytes sent of a file; those sent again count again."""
        return sum(sent.end - sent.start for sent in self._of(repository, path))

    def most_often(self, repository: str, path: str) -> int:
        """Return how often the byte of a file was sent that was sent most often."""
        steps: Counter[int] = Counter()
        for sent in self._of(repository, path):
            steps[sent.start] += 1
            steps[sent.end] -= 1
        return max(accumulate(steps[place] for place in sorted(steps)), default=0)

    def _of(self, repository: str, path: str) -> list[Sent]:
        return [sent for sent in self.sent if (sent.repository, sent.path) == (repository, path)]

    async def send(
        self, request: web.Request, repository: str, file: Path, headers: dict[str, str]
    ) -> web.StreamResponse:
        """Answer with the requested range of a file, or with all of it."""
        path = request.match_info["path"]
        if path in self.statuses:
            return web.Response(status=self.statuses[path])
        response, asked = self._response(request, file, headers)
        await response.prepare(request)
        if asked and request.method != "HEAD":
            sent = Sent(repository, path, asked.start, asked.start)
            self.sent.append(sent)
            # If the client goes away, what was sent until then is on record.
            with file.open("rb") as content, suppress(ConnectionError, ClientConnectionError):
                await self._stream(response, request, content, asked, sent)
        return response

    def _response(
        self, request: web.Request, file: Path, headers: dict[str, str]
    ) -> tuple[web.StreamResponse, range]:
        asked = whole = range(file.stat().st_size)
        response = web.StreamResponse(headers=headers)
        if "Range" in request.headers and not self.ignores_ranges:
            asked = whole[request.http_range]
            place = f"{asked[0]}-{asked[-1]}" if asked else "*"
            response.headers["Content-Range"] = f"bytes {place}/{len(whole)}"
            response.set_status(206 if asked else 416)
        if self.longest is not None and len(asked) > self.longest:
            response.set_status(400)
            asked = range(0)
        response.content_length = len(asked)
        return response, asked

    async def _stream(
        self,
        response: web.StreamResponse,
        request: web.Request,
        content: BufferedReader,
        asked: range,
        sent: Sent,
    ) -> None:
        transport = request.transport
        if transport is None:
            return
        # Nothing is buffered here: it would be lost with the connection.
        transport.set_write_buffer_limits(0)
        content.seek(asked.start)
        end = self._end(asked)
        while sent.end < end:
            limit = (asked.start + end) // 2 if sent.path in self.stalled else end
            size = await self._turn(limit - sent.end)
            if transport.is_closing():
                return
            if not size:
                await asyncio.sleep(STALL_LOOK_S)
                continue
            piece = bytearray(content.read(size))
            if sent.path in self.wrong and not content.peek():
                piece[-1] ^= 1
            sent.end += size
            await response.write(piece)
            await request.writer.drain()
        if end < asked.stop:
            transport.abort()

    def _end(self, asked: range) -> int:
        """Return where an answer ends: before the end of what was requested, if it is to be cut."""
        if self.cut_after is None or self.cuts == 0 or len(asked) <= self.cut_after:
            return asked.stop
        if self.cuts is not None:
            self.cuts -= 1
        return asked.start + self.cut_after

    async def _turn(self, left: int) -> int:
        """Wait until the line is free for the next piece; return the piece's size in bytes."""
        rate = self.throttle
        if rate is None:
            # A fast client never blocks the write: let others take their turn, and see it close.
            await asyncio.sleep(0)
            return min(left, PIECE)
        size = min(left, PIECE, max(1, int(rate * PIECE_S)))
        now = time.monotonic()
        self._free = max(self._free, now - PIECE_S) + size / rate
        await asyncio.sleep(self._free - now)
        return size
