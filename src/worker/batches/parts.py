"""Stores finished lines: each attempt at a shard appends to its own files, and commits in groups.

A part consists of two files: one with lines in the format of the output file, the other with a
record of fixed size for each line. A record is written after its line is durable, so an incomplete
line has no record. Each record has checksums of itself and of its line, because a disk may lose
data that it reported as durable.
"""

import asyncio
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from worker.json_lines import encode_line
from worker.volume import ids, translate_os_errors
from worker.volume.durable import sync_directory, write_durably

# A group is committed when it has this many lines, or after this many seconds.
GROUP_LINES = 64
GROUP_S = 1.0
# Bytes of uncommitted lines above which another line waits for the disk.
MAX_PENDING_BYTES = 64_000_000

LINES, RECORDS = ".jsonl", ".records"
_RECORD = struct.Struct("<IBIIQIII")
_CHECKED_BYTES = _RECORD.size - 4


@dataclass(frozen=True, slots=True)
class FinishedLine:
    """A durable response to the line ``number`` of the input; it ``failed`` if it is an error.

    Its text, with a line feed, has ``length`` bytes from ``offset`` in the file ``part``.
    ``checksum`` is the CRC-32 of the text.
    """

    number: int
    failed: bool
    prompt_tokens: int
    output_tokens: int
    offset: int
    length: int
    checksum: int
    part: Path


@dataclass(frozen=True, slots=True)
class PendingLine:
    """An answered line that is not yet durable. Its text is JSON without a line feed."""

    number: int
    failed: bool
    prompt_tokens: int
    output_tokens: int
    text: bytes


class PartWriter:
    """Writes the part of one attempt at a shard. Use on one event loop.

    Args:
        directory: Directory of all parts of the batch.
        name: Name of both files without their suffixes, which no other attempt has.
        reserve: Counts bytes that are about to be written, and raises ``VolumeError`` if they
            don't fit; call it in threads.
    """

    def __init__(self, directory: Path, name: str, reserve: Callable[[int], None]) -> None:
        self._reserve = reserve
        self._lines = directory / f"{name}{LINES}"
        self._records = directory / f"{name}{RECORDS}"
        self._pending: list[PendingLine] = []
        self._pending_bytes = 0
        self._offset = 0
        self._files: tuple[FileIO, FileIO] | None = None
        self._commit_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._commit_due = False

    async def add_line(self, line: PendingLine) -> None:
        """Add a line; before that, wait while more than ``MAX_PENDING_BYTES`` are uncommitted.

        Raises:
            VolumeError: An earlier commit has failed.
        """
        while self._pending_bytes > MAX_PENDING_BYTES:
            await self._commit()
        # No ``await`` follows: a task that is cancelled in the loop above has added no line.
        self.raise_commit_error()
        if not self._pending:
            self._timer = asyncio.get_running_loop().call_later(GROUP_S, self._start_commit)
        self._pending.append(line)
        self._pending_bytes += len(line.text)
        if len(self._pending) >= GROUP_LINES:
            self._start_commit()

    def raise_commit_error(self) -> None:
        """Raise the error of a failed commit, if any; call this every second.

        Raises:
            VolumeError: A commit has failed.
        """
        if self._commit_task is not None and self._commit_task.done():
            self._commit_task.result()

    async def close(self) -> None:
        """Commit all added lines and close the files, even if this call is cancelled.

        Raises:
            VolumeError: The lines can't be written.
        """
        await asyncio.shield(asyncio.create_task(self._commit_and_close()))

    async def _commit_and_close(self) -> None:
        try:
            await self._commit()
        finally:
            for file in self._files or ():
                file.close()

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
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            await asyncio.to_thread(self._write_group, pending)
        self._commit_task = None

    def _write_group(self, pending: list[PendingLine]) -> None:
        with translate_os_errors():
            if self._files is None:
                self._lines.parent.mkdir(parents=True, exist_ok=True)
                self._files = self._lines.open("xb", 0), self._records.open("xb", 0)
                sync_directory(self._lines.parent)
            lines_file, records_file = self._files
            new_lines, new_records = bytearray(), bytearray()
            for line in pending:
                text = line.text + b"\n"
                counts = (line.prompt_tokens, line.output_tokens, self._offset, len(text))
                fields = (line.number, line.failed, *counts, zlib.crc32(text))
                record = _RECORD.pack(*fields, 0)[:_CHECKED_BYTES]
                new_records += record + zlib.crc32(record).to_bytes(4, "little")
                new_lines += text
                self._offset += len(text)
            self._reserve(len(new_lines) + len(new_records))
            write_durably(lines_file, new_lines)
            write_durably(records_file, new_records)


def read_finished_lines(
    directory: Path, max_bytes: Mapping[str, int] | None = None, *, check_texts: bool = False
) -> dict[int, FinishedLine]:
    """Return the finished lines of all parts by number.

    If a line occurs several times, a successful response has priority over an error; otherwise, the
    first occurrence counts.

    Args:
        directory: Directory of the parts.
        max_bytes: Bytes to read of each records file, by file name; 0 for a file without an entry.
            None to read all files completely.
        check_texts: Whether to read the texts and leave out damaged ones.

    Raises:
        OSError: The parts can't be read.
    """
    best: dict[int, FinishedLine] = {}
    for path in sorted(directory.glob(f"*{RECORDS}")):
        limit = None if max_bytes is None else max_bytes.get(path.name, 0)
        for line in _read_intact_lines(path, limit) if check_texts else _read_records(path, limit):
            if line.number not in best or (best[line.number].failed and not line.failed):
                best[line.number] = line
    return best


def records_file_sizes(directory: Path) -> dict[str, int]:
    """Return the bytes of all records files by name: ``max_bytes`` of ``read_finished_lines``."""
    return {path.name: path.stat().st_size for path in sorted(directory.glob(f"*{RECORDS}"))}


def read_line_text(line: FinishedLine, file: BinaryIO) -> bytes:
    """Read the text of a line from its part, with its line feed."""
    file.seek(line.offset)
    return file.read(line.length)


def _read_intact_lines(records: Path, max_bytes: int | None) -> Iterator[FinishedLine]:
    """Yield the lines of a part whose texts match their checksums."""
    with records.with_suffix(LINES).open("rb") as file:
        for line in _read_records(records, max_bytes):
            if zlib.crc32(read_line_text(line, file)) == line.checksum:
                yield line


def _read_records(records: Path, max_bytes: int | None) -> Iterator[FinishedLine]:
    """Yield lines with an intact record and a text of full length; a crash may truncate both."""
    part = records.with_suffix(LINES)
    try:
        content = records.read_bytes()[:max_bytes]
        size = part.stat().st_size
    except FileNotFoundError:
        # The batch is being removed.
        return
    for start in range(0, len(content) - _RECORD.size + 1, _RECORD.size):
        *fields, checksum = _RECORD.unpack_from(content, start)
        if zlib.crc32(content[start : start + _CHECKED_BYTES]) == checksum:
            number, failed, prompt, output, offset, length, crc = fields
            if offset + length <= size:
                yield FinishedLine(number, bool(failed), prompt, output, offset, length, crc, part)


def encode_result_line(
    batch_id: str,
    number: int,
    custom_id: str,
    *,
    response: dict[str, object] | None = None,
    error: dict[str, str] | None = None,
) -> bytes:
    """Return a line of an output or error file, with its line feed."""
    line = {
        "id": line_request_id(batch_id, number),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return encode_line(line) + b"\n"


def line_request_id(batch_id: str, number: int) -> str:
    """Return the id of a line's request, which is the same in each attempt."""
    return ids.derive_id("batch_req_", batch_id, str(number))
