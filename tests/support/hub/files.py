"""How the hub on loopback sends files: byte for byte on record, slowly, wrongly or not to the end.

What is on record has been handed to the system. Of a connection that broke, the last of it may
never have reached the client.
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

# Sent at once at most, in bytes.
PIECE = 64 * 1024
# Sent at once at most, in seconds of a throttled line; and as much lost time is made up for.
PIECE_S = 0.02


@dataclass
class Sent:
    """A range of a file as far as it was sent: `end` moves on with every piece."""

    repository: str
    path: str
    start: int
    end: int


@dataclass
class Files:
    """What was sent of files, and what is wrong with the way they are sent."""

    sent: list[Sent] = field(default_factory=list)
    # In bytes per second, of all connections together.
    throttle: float | None = None
    # The connection is cut after so many bytes of an answer: `cuts` times, or always.
    cut_after: int | None = None
    cuts: int | None = None
    # Paths of files whose last byte is sent wrong.
    wrong: set[str] = field(default_factory=set)
    # Whoever asks for a range gets the whole file.
    ignores_ranges: bool = False
    # When the line is free again, on the monotonic clock.
    _free: float = 0.0

    def transferred(self, repository: str, path: str) -> int:
        """Count the bytes sent of a file, each as often as it was sent."""
        return sum(sent.end - sent.start for sent in self._of(repository, path))

    def most_often(self, repository: str, path: str) -> int:
        """Tell how often that byte of a file was sent that was sent most often."""
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
        """Answer with what the request asks for of a file."""
        response, asked = self._begun(request, file, headers)
        await response.prepare(request)
        if asked and request.method != "HEAD":
            sent = Sent(repository, request.match_info["path"], asked.start, asked.start)
            self.sent.append(sent)
            # The client may go away: what it was sent until then is on record.
            with file.open("rb") as content, suppress(ConnectionError, ClientConnectionError):
                await self._stream(response, request, content, asked, sent)
        return response

    def _begun(
        self, request: web.Request, file: Path, headers: dict[str, str]
    ) -> tuple[web.StreamResponse, range]:
        asked = whole = range(file.stat().st_size)
        response = web.StreamResponse(headers=headers)
        if "Range" in request.headers and not self.ignores_ranges:
            asked = whole[request.http_range]
            place = f"{asked[0]}-{asked[-1]}" if asked else "*"
            response.headers["Content-Range"] = f"bytes {place}/{len(whole)}"
            response.set_status(206 if asked else 416)
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
        # What the system does not take is waited for: it would be lost with the connection.
        transport.set_write_buffer_limits(0)
        content.seek(asked.start)
        end = self._end(asked)
        while sent.end < end:
            size = await self._turn(end - sent.end)
            if transport.is_closing():
                return
            piece = bytearray(content.read(size))
            if sent.path in self.wrong and not content.peek():
                piece[-1] ^= 1
            sent.end += size
            await response.write(piece)
            await request.writer.drain()
        if end < asked.stop:
            transport.abort()

    def _end(self, asked: range) -> int:
        """Tell where an answer ends: before what was asked for, if it is to be cut."""
        if self.cut_after is None or self.cuts == 0 or len(asked) <= self.cut_after:
            return asked.stop
        if self.cuts is not None:
            self.cuts -= 1
        return asked.start + self.cut_after

    async def _turn(self, left: int) -> int:
        """Wait until the line is free for the next piece, and tell how large that is."""
        rate = self.throttle
        if rate is None:
            # A fast client is never waited for: others take their turn, and its end is noticed.
            await asyncio.sleep(0)
            return min(left, PIECE)
        size = min(left, PIECE, max(1, int(rate * PIECE_S)))
        now = time.monotonic()
        self._free = max(self._free, now - PIECE_S) + size / rate
        await asyncio.sleep(self._free - now)
        return size
