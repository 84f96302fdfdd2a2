"""Sends files of the hub on loopback: records the bytes, and adds the faults that a test sets.

Recorded bytes have been passed to the operating system. If the connection broke, the client may not
have received the last of them.
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

# Limits of a piece: bytes, and seconds on a throttled connection. Lost time up to the second limit
# is caught up.
PIECE = 64 * 1024
PIECE_S = 0.02
# Seconds between two checks whether a stalled file may continue.
STALL_POLL_S = 0.02


@dataclass
class SentRange:
    """The sent part of a requested range of a file; ``end`` grows with each piece."""

    repository: str
    path: str
    start: int
    end: int


@dataclass
class Files:
    """The ranges of files that were sent, and faults for further responses."""

    sent_ranges: list[SentRange] = field(default_factory=list)
    # Bytes per second, for all connections together.
    throttle: float | None = None
    # Number of bytes of a response after which the connection is cut: ``cuts`` times, or always.
    cut_after: int | None = None
    cuts: int | None = None
    # Paths of files whose last byte is sent wrong.
    corrupt_paths: set[str] = field(default_factory=set)
    # Paths of files whose responses stop in the middle, while the connection stays open.
    stalled_paths: set[str] = field(default_factory=set)
    # Statuses of files, by path, that are answered with only a status.
    statuses: dict[str, int] = field(default_factory=dict)
    # Largest range in bytes; larger requests get a 400, as from the hub for very large files.
    max_range: int | None = None
    # Requests for a range are answered with the whole file.
    ignores_ranges: bool = False
    # Time at which the throttled connection is free again, on the monotonic clock.
    _free_at: float = 0.0

    def bytes_sent(self, repository: str, path: str) -> int:
        """Return the number of bytes sent of a file, including repeated ones."""
        return sum(sent.end - sent.start for sent in self._ranges_of(repository, path))

    def max_sends(self, repository: str, path: str) -> int:
        """Return the maximum number of times that any byte of a file was sent."""
        steps: Counter[int] = Counter()
        for sent in self._ranges_of(repository, path):
            steps[sent.start] += 1
            steps[sent.end] -= 1
        return max(accumulate(steps[place] for place in sorted(steps)), default=0)

    def _ranges_of(self, repository: str, path: str) -> list[SentRange]:
        return [
            sent for sent in self.sent_ranges if (sent.repository, sent.path) == (repository, path)
        ]

    async def send(
        self, request: web.Request, repository: str, file: Path, headers: dict[str, str]
    ) -> web.StreamResponse:
        """Answer with the requested range of a file, or with all of it."""
        path = request.match_info["path"]
        if path in self.statuses:
            return web.Response(status=self.statuses[path])
        response, requested = self._response(request, file, headers)
        await response.prepare(request)
        if requested and request.method != "HEAD":
            sent = SentRange(repository, path, requested.start, requested.start)
            self.sent_ranges.append(sent)
            # If the client disconnects, the bytes sent until then are recorded.
            with file.open("rb") as content, suppress(ConnectionError, ClientConnectionError):
                await self._stream(response, request, content, requested, sent)
        return response

    def _response(
        self, request: web.Request, file: Path, headers: dict[str, str]
    ) -> tuple[web.StreamResponse, range]:
        requested = whole = range(file.stat().st_size)
        response = web.StreamResponse(headers=headers)
        if "Range" in request.headers and not self.ignores_ranges:
            requested = whole[request.http_range]
            place = f"{requested[0]}-{requested[-1]}" if requested else "*"
            response.headers["Content-Range"] = f"bytes {place}/{len(whole)}"
            response.set_status(206 if requested else 416)
        if self.max_range is not None and len(requested) > self.max_range:
            response.set_status(400)
            requested = range(0)
        response.content_length = len(requested)
        return response, requested

    async def _stream(
        self,
        response: web.StreamResponse,
        request: web.Request,
        content: BufferedReader,
        requested: range,
        sent: SentRange,
    ) -> None:
        transport = request.transport
        if transport is None:
            return
        # Nothing is buffered here: it would be lost with the connection.
        transport.set_write_buffer_limits(0)
        content.seek(requested.start)
        end = self._response_end(requested)
        while sent.end < end:
            limit = (requested.start + end) // 2 if sent.path in self.stalled_paths else end
            size = await self._wait_for_piece(limit - sent.end)
            if transport.is_closing():
                return
            if not size:
                await asyncio.sleep(STALL_POLL_S)
                continue
            piece = bytearray(content.read(size))
            if sent.path in self.corrupt_paths and not content.peek():
                piece[-1] ^= 1
            sent.end += size
            await response.write(piece)
            await request.writer.drain()
        if end < requested.stop:
            transport.abort()

    def _response_end(self, requested: range) -> int:
        """Return the position at which a response ends; a cut response ends early."""
        if self.cut_after is None or self.cuts == 0 or len(requested) <= self.cut_after:
            return requested.stop
        if self.cuts is not None:
            self.cuts -= 1
        return requested.start + self.cut_after

    async def _wait_for_piece(self, remaining: int) -> int:
        """Wait until the connection is free for the next piece; return its size in bytes."""
        rate = self.throttle
        if rate is None:
            # A fast client never blocks the write: let other tasks run, and notice a closed
            # connection.
            await asyncio.sleep(0)
            return min(remaining, PIECE)
        size = min(remaining, PIECE, max(1, int(rate * PIECE_S)))
        now = time.monotonic()
        self._free_at = max(self._free_at, now - PIECE_S) + size / rate
        await asyncio.sleep(self._free_at - now)
        return size
