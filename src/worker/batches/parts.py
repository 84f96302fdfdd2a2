"""Finished lines of a batch: each owner of a shard appends them to a file of its own, its part.

A line of a part is JSON: the number of the line in the input, its result in the format of the
output file, its counts, and the counts of the whole shard so far. Lines become durable in groups. A
crash may cut the last line of a part, so readers take only whole lines. Nothing is appended after a
crash or a failed write, because the next owner has its own part.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import msgspec

from worker.json_lines import encode_line
from worker.volume import ids, translate_os_errors
from worker.volume.durable import sync_directory, write_durably

# A group is committed when it has this many lines, or after this many seconds.
GROUP_LINES = 64
GROUP_S = 1.0
# Bytes of uncommitted lines above which another line waits for the disk.
MAX_PENDING_BYTES = 64_000_000
# Bytes at the end of a part that are read first to find its last line.
TAIL_BYTES = 65_536

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Numbers of finished lines, and the tokens of their requests and answers.

    A line is ``completed`` if it has a successful response, and ``failed`` if it has an error.
    """

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "LineCounts") -> "LineCounts":
        return LineCounts(
            self.completed + other.completed,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )

    @property
    def finished(self) -> int:
        return self.completed + self.failed


@dataclass(frozen=True, slots=True)
class FinishedLine:
    """A durable result of the line ``number`` of the input.

    It is the line of ``length`` bytes from ``offset`` in the file ``part``.
    """

    number: int
    counts: LineCounts
    part: Path
    offset: int
    length: int


class _PartLine(msgspec.Struct):
    """A line of a part. ``shard`` has the counts of the shard's lines up to this one.

    If the number is 0, it has only these counts.
    """

    line: int
    counts: LineCounts
    shard: LineCounts
    result: msgspec.Raw


_decoder = msgspec.json.Decoder(_PartLine)


def part_path(directory: Path, shard: int, owner: str) -> Path:
    """Return the path of a part.

    Args:
        directory: Directory of all parts of the batch.
        shard: Index of the shard.
        owner: Owner of the shard's lease; no later one has the same id.
    """
    return directory / f"{shard}.{owner}{SUFFIX}"


class PartWriter:
    """Writes a part. Use on one event loop.

    Args:
        path: Path of the part.
        counts: Counts of the shard's lines that earlier owners have finished.
        reserve: Counts bytes that are about to be written, and raises ``VolumeError`` if they
            don't fit; call it in threads.
    """

    def __init__(self, path: Path, counts: LineCounts, reserve: Callable[[int], None]) -> None:
        self._path = path
        self._counts = counts
        self._reserve = reserve
        self._file: FileIO | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._commit_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._commit_due = False

    async def add_line(self, number: int, result: bytes, counts: LineCounts) -> None:
        """Add a line; before that, wait while more than ``MAX_PENDING_BYTES`` are uncommitted.

        Args:
            number: Number of the line in the input.
            result: Line of the output file, without a line feed.
            counts: Counts of this line.

        Raises:
            VolumeError: An earlier commit has failed.
        """
        while self._pending_bytes > MAX_PENDING_BYTES:
            await self._commit()
        # No ``await`` follows: a task that is cancelled in the loop above has added no line.
        self.raise_commit_error()
        self._counts += counts
        line = _PartLine(number, counts, self._counts, msgspec.Raw(result))
        text = msgspec.json.encode(line) + b"\n"
        if not self._pending:
            self._timer = asyncio.get_running_loop().call_later(GROUP_S, self._start_commit)
        self._pending.append(text)
        self._pending_bytes += len(text)
        if len(self._pending) >= GROUP_LINES:
            self._start_commit()

    async def add_counts(self) -> None:
        """Add a line with only the counts of the shard."""
        await self.add_line(0, b"null", LineCounts())

    def raise_commit_error(self) -> None:
        """Raise the error of a failed commit, if any; call this every second."""
        if self._commit_task is not None and self._commit_task.done():
            self._commit_task.result()

    async def close(self) -> None:
        """Commit all added lines and close the file, even if this call is cancelled."""
        await asyncio.shield(asyncio.create_task(self._commit_and_close()))

    async def _commit_and_close(self) -> None:
        try:
            await self._commit()
        finally:
            if self._file is not None:
                self._file.close()

    async def _commit(self) -> None:
        """Make all added lines durable."""
        while self._pending or self._commit_task is not None:
            self._start_commit()
            assert self._commit_task is not None  # for the type checker: ``_start_commit`` sets it
            await asyncio.shield(self._commit_task)

    def _start_commit(self) -> None:
        """Start a commit, or let the running one continue with the pending lines."""
        self._commit_due = True
        if self._commit_task is None:
            self._commit_task = asyncio.create_task(self._write_groups())

    async def _write_groups(self) -> None:
        """Write groups one at a time. After a failure, nothing more is written."""
        while self._pending and (self._commit_due or len(self._pending) >= GROUP_LINES):
            if self._timer is not None:
                self._timer.cancel()
            self._commit_due = False
            group, self._pending, self._pending_bytes = b"".join(self._pending), [], 0
            await asyncio.to_thread(self._write_group, group)
        self._commit_task = None

    def _write_group(self, group: bytes) -> None:
        with translate_os_errors():
            if self._file is None:
                directory = self._path.parent
                directory.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("xb", 0)
                # The part may be the first one of its batch.
                sync_directory(directory)
                sync_directory(directory.parent)
            self._reserve(len(group))
            write_durably(self._file, group)


def read_finished_lines(
    directory: Path, cut: Mapping[str, int] | None = None, shard: int | None = None
) -> dict[int, FinishedLine]:
    """Return the finished lines of all parts by number. Reads the parts completely.

    If a line occurs several times, because a frozen worker had lost its lease, a successful
    response has priority over an error; otherwise, the first occurrence counts.

    Args:
        directory: Directory of the parts.
        cut: Bytes of each part that count, by file name; 0 for a part without an entry. None to
            read all parts.
        shard: Index of a shard, to read only its parts; None for all shards.
    """
    best: dict[int, FinishedLine] = {}
    for path in sorted(directory.glob(f"{'*' if shard is None else shard}.*{SUFFIX}")):
        for line in _read_part(path, None if cut is None else cut.get(path.name, 0)):
            earlier = best.get(line.number)
            if earlier is None or (earlier.counts.failed and not line.counts.failed):
                best[line.number] = line
    return best


def count_finished_lines(
    directory: Path, cut: Mapping[str, int] | None = None
) -> dict[int, LineCounts]:
    """Return the counts of the finished lines by shard, from the last line of each part.

    Args:
        directory: Directory of the parts.
        cut: Bytes of each part that count; see ``read_finished_lines``.
    """
    shards: dict[int, LineCounts] = {}
    for path in directory.glob(f"*{SUFFIX}"):
        shard = int(path.name.partition(".")[0])
        counts = _read_shard_counts(path, None if cut is None else cut.get(path.name, 0))
        # A worker that was frozen may have counted fewer lines than the next one, or more.
        if shard not in shards or counts.finished > shards[shard].finished:
            shards[shard] = counts
    return shards


def part_sizes(directory: Path) -> dict[str, int]:
    """Return the bytes of all parts by name: the ``cut`` of ``read_finished_lines``."""
    sizes = {}
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        # A network disk may return an old size of another machine's file until it is opened.
        with path.open("rb") as file:
            sizes[path.name] = file.seek(0, os.SEEK_END)
    return sizes


@contextlib.contextmanager
def open_results(lines: Iterable[FinishedLine]) -> Iterator[Callable[[FinishedLine], bytes]]:
    """Yield a function that reads the result of one of these lines, without a line feed."""
    with contextlib.ExitStack() as stack:
        parts = {line.part for line in lines}
        files = {part: stack.enter_context(part.open("rb")) for part in parts}

        def read_result(line: FinishedLine) -> bytes:
            file = files[line.part]
            file.seek(line.offset)
            return bytes(_decoder.decode(file.read(line.length)).result)

        yield read_result


def _read_part(path: Path, max_bytes: int | None) -> Iterator[FinishedLine]:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except FileNotFoundError:
            # The batch is being removed.
            return
        offset = 0
        for text in file:
            end = offset + len(text)
            if max_bytes is not None and end > max_bytes:
                return
            if text.endswith(b"\n") and (line := _parse_line(text)) and line.line:
                yield FinishedLine(line.line, line.counts, path, offset, len(text))
            offset = end


def _read_shard_counts(path: Path, max_bytes: int | None) -> LineCounts:
    """Return the counts of the shard from the last whole line of a part."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        begin, tail = file.seek(0, os.SEEK_END), b""
        if max_bytes is not None:
            begin = min(begin, max_bytes)
        while begin:
            count = min(begin, max(len(tail), TAIL_BYTES))
            begin -= count
            file.seek(begin)
            tail = file.read(count) + tail
            # The first of these lines has its beginning before the tail, the last one has no end.
            lines = tail.split(b"\n")[1 if begin else 0 : -1]
            if last := next(filter(None, map(_parse_line, reversed(lines))), None):
                return last.shard
    return LineCounts()


def _parse_line(text: bytes) -> _PartLine | None:
    """Return a line of a part; None if a crash has damaged it."""
    with contextlib.suppress(msgspec.DecodeError):
        return _decoder.decode(text)
    return None


def encode_result_line(
    batch_id: str,
    number: int,
    custom_id: str,
    *,
    response: dict[str, object] | None = None,
    error: dict[str, str] | None = None,
) -> bytes:
    """Return a line of an output or error file, without its line feed."""
    return encode_line(
        {
            "id": line_request_id(batch_id, number),
            "custom_id": custom_id,
            "response": response,
            "error": error,
        }
    )


def line_request_id(batch_id: str, number: int) -> str:
    """Return the id of a line's request, which is the same if it is answered again."""
    return ids.derive_id("batch_req_", batch_id, str(number))
