"""A small Hugging Face hub on loopback, with the part of its HTTP API that the real client uses.

It serves directories (listings, hashes, ranges, commits) and protects gated and private
repositories like the real hub. Tests can make it fail, hang and send wrong files. It records the
bytes that it has passed to the operating system: if the connection broke, the client may not have
received the last of them.
"""

import asyncio
import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import ClientConnectionError, web

from support.processes.background import HUNG_S

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


# Tokens of a user who may read everything, and of a user without access to gated repositories.
MEMBER = "hf_member"
STRANGER = "hf_stranger"

# Files of at least this many bytes, or of these types, are in the hub's large file storage.
LARGE = 10 * 1024 * 1024
LARGE_TYPES = (".safetensors", ".bin", ".pt", ".gguf")

INVALID_TOKEN = "Invalid credentials in Authorization header"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Repository:
    """A model: a directory for each revision, and its access restrictions."""

    revisions: dict[str, Path]
    gated: bool = False
    private: bool = False

    def find(self, revision: str) -> Path:
        commits = {commit_id(folder): folder for folder in self.revisions.values()}
        folder = self.revisions.get(revision) or commits.get(revision)
        return folder or refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")


@dataclass
class Hub:
    """A running hub: its repositories, what it received and sent, and its faults."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    # Method, path and requested range.
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    # The status of the response to every request; None for regular responses.
    status: int | None = None
    # Statuses of the responses to the next requests, one each.
    next_statuses: list[int] = field(default_factory=list)
    # New names of models by their old names.
    new_names: dict[str, str] = field(default_factory=dict)
    # Large files are on another host, which must not receive a token.
    redirects_large_files: bool = False
    # The token of each request to that host.
    tokens_on_other_host: list[str | None] = field(default_factory=list)
    # No request is answered while this is set.
    hangs: bool = False
    endpoint: str = ""
    # The ranges of files that were sent.
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

    def add(self, name: str, folder: Path, **guarded: bool) -> Repository:
        """Serve a directory as the main branch of a model."""
        self.repositories[name] = Repository({"main": folder}, **guarded)
        return self.repositories[name]

    def clear(self) -> None:
        """Forget all requests and sent files."""
        self.requests.clear()
        self.sent_ranges.clear()
        self.tokens_on_other_host.clear()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._fail])
        model = "/api/models/{owner}/{name}"
        app.router.add_get(model, self._info)
        app.router.add_get(model + "/revision/{revision}", self._info)
        app.router.add_get(model + "/tree/{revision}", self._tree)
        app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", self._file)
        app.router.add_get("/elsewhere/{owner}/{name}/{revision}/{path:.+}", self._other_host_file)
        return app

    @web.middleware
    async def _fail(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append((request.method, request.path, request.headers.get("Range", "")))
        while self.hangs:
            await asyncio.sleep(0.05)
        if self.status:
            return web.Response(status=self.status)
        if self.next_statuses:
            # The client library waits one second longer than this.
            return web.Response(status=self.next_statuses.pop(0), headers={"Retry-After": "0"})
        if address := self._new_address(request.path_qs):
            return web.Response(status=307, headers={"Location": address})
        return await handler(request)

    def _new_address(self, address: str) -> str | None:
        for old, new in self.new_names.items():
            for root in ("/api/models/", "/"):
                if re.match(f"{root}{re.escape(old)}(?=[/?]|$)", address):
                    return address.replace(f"{root}{old}", f"{root}{new}", 1)
        return None

    def _repository(self, request: web.Request) -> Repository:
        token = bearer(request)
        if token not in (None, MEMBER, STRANGER):
            refuse(401, None, INVALID_TOKEN)
        repository = self.repositories.get(full_name(request))
        if repository is None or (repository.private and token != MEMBER):
            # Anonymous callers can't find out whether the repository exists.
            refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        return repository

    def _folder(self, request: web.Request) -> Path:
        return self._repository(request).find(request.match_info.get("revision", "main"))

    async def _info(self, request: web.Request) -> web.StreamResponse:
        repository, folder = self._repository(request), self._folder(request)
        return web.json_response(
            {
                "id": full_name(request),
                "modelId": full_name(request),
                "sha": commit_id(folder),
                "private": repository.private,
                "gated": "auto" if repository.gated else False,
                "siblings": [listing_entry(folder, path) for path in relative_paths(folder)],
                "tags": [],
            }
        )

    async def _tree(self, request: web.Request) -> web.StreamResponse:
        folder = self._folder(request)
        return web.json_response([listing_entry(folder, path) for path in relative_paths(folder)])

    async def _file(self, request: web.Request) -> web.StreamResponse:
        repository, folder = self._repository(request), self._folder(request)
        token = bearer(request)
        if repository.gated and token != MEMBER:
            refuse(403 if token else 401, "GatedRepo", "Access to this model is restricted")
        path = request.match_info["path"]
        if path not in relative_paths(folder):
            refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit_id(folder)})
        file = folder / path
        headers = {"ETag": f'"{blob_id(file)}"', "X-Repo-Commit": commit_id(folder)}
        if is_large(file):
            headers["X-Linked-Etag"] = headers["ETag"]
            headers["X-Linked-Size"] = str(file.stat().st_size)
            if self.redirects_large_files:
                place = f"/elsewhere/{full_name(request)}/{commit_id(folder)}/{path}"
                address = request.url.with_host("localhost").with_path(place)
                return web.Response(status=302, headers={**headers, "Location": str(address)})
        return await self.send(request, full_name(request), file, headers)

    async def _other_host_file(self, request: web.Request) -> web.StreamResponse:
        self.tokens_on_other_host.append(bearer(request))
        # The URL itself is the permission: no token is needed.
        folder = self.repositories[full_name(request)].find(request.match_info["revision"])
        return await self.send(request, full_name(request), folder / request.match_info["path"], {})

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


@contextmanager
def hub() -> Iterator[Hub]:
    """Run a hub in a thread, on a free port of loopback."""
    running = Hub()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="hub", daemon=True)
    thread.start()

    async def begin() -> web.AppRunner:
        runner = web.AppRunner(running.app(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        running.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runner = asyncio.run_coroutine_threadsafe(begin(), loop).result(HUNG_S)
    try:
        yield running
    finally:
        running.hangs = False
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(HUNG_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def refuse(
    status: int, code: str | None, message: str, headers: dict[str, str] | None = None
) -> NoReturn:
    """Raise an error response with the headers by which the client library recognizes it."""
    named = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    types: dict[int, type[web.HTTPError]] = {
        401: web.HTTPUnauthorized,
        403: web.HTTPForbidden,
        404: web.HTTPNotFound,
    }
    raise types[status](headers={**named, **(headers or {})}, text=message)


def full_name(request: web.Request) -> str:
    return f"{request.match_info['owner']}/{request.match_info['name']}"


def bearer(request: web.Request) -> str | None:
    return request.headers.get("Authorization", "").removeprefix("Bearer ") or None


def relative_paths(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files)


def commit_id(folder: Path) -> str:
    """Return a hash of a directory's files and their content, in the format of git's commits."""
    state = [(path, blob_id(folder / path)) for path in relative_paths(folder)]
    return hashlib.sha1(repr(state).encode(), usedforsecurity=False).hexdigest()


def is_large(path: Path) -> bool:
    return path.suffix in LARGE_TYPES or path.stat().st_size >= LARGE


def blob_id(path: Path) -> str:
    stat = path.stat()
    return content_hash(path, stat.st_mtime_ns, stat.st_size)


@cache
def content_hash(path: Path, changed: int, size: int) -> str:
    """Return the hub's hash of a file: SHA-256 for a large file, git's hash for others."""
    if is_large(path):
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    content = b"blob %d\0" % size + path.read_bytes()
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def listing_entry(folder: Path, path: str) -> dict[str, Any]:
    """Return the entry of a file in both kinds of listings, which use different keys."""
    file = folder / path
    size, oid = file.stat().st_size, blob_id(file)
    pointer = {"oid": oid, "sha256": oid, "size": size, "pointerSize": 134}
    names = {"type": "file", "path": path, "rfilename": path, "oid": oid, "blobId": oid}
    return {**names, "size": size, **({"lfs": pointer} if is_large(file) else {})}
