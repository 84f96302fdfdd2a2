"""Finished lines: each attempt at a shard appends to files of its own, and commits in groups.

A part is two files. One has the lines of the output as they will be written, the other a record of
fixed size for each: it is written when its line is durable, so a line that is torn has no record.
Both have checksums, for disks that lose what they said was durable.
"""

import asyncio
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from worker.volume import check_space, failures, sync_directory

# A group is committed when it is so large, or so old.
GROUP_LINES = 64
GROUP_S = 1.0
# Bytes that may wait for a slow disk.
MOST_PENDING = 64_000_000

LINES, RECORDS = ".jsonl", ".records"
_RECORD = struct.Struct("<IBIIQIII")
_CHECKED = _RECORD.size - 4


@dataclass(frozen=True, slots=True)
class Finished:
    """A line that is durable.

    Args:
        number: of the input's line.
        failed: whether its answer is an error.
        prompt_tokens: that its answer counts; ``output_tokens``: likewise.
        offset: where its text is in the part, in bytes; ``length``: with its line feed.
        checksum: of its text.
        part: the file.
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
class Row:
    """A finished line on its way to the disk: its text as JSON, without a line feed."""

    number: int
    failed: bool
    prompt_tokens: int
    output_tokens: int
    text: bytes


class Part:
    """The files of this attempt at a shard. Use on one loop, all but ``_write``.

    Args:
        directory: of all parts of the batch.
        name: that no other attempt has.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._lines = directory / f"{name}{LINES}"
        self._records = directory / f"{name}{RECORDS}"
        self._pending: list[Row] = []
        self._bytes = 0
        self._offset = 0
        self._open: tuple[FileIO, FileIO] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = False

    async def add(self, row: Row) -> None:
        """Take a line, which is committed with others, within a second.

        Raises:
            VolumeError: an earlier commit has failed.
        """
        while self._bytes > MOST_PENDING:
            await self._commit()
        # From here on nothing waits: a line that is cancelled is in no part.
        self.check()
        if not self._pending:
            self._timer = asyncio.get_running_loop().call_later(GROUP_S, self._begin)
        self._pending.append(row)
        self._bytes += len(row.text)
        if len(self._pending) >= GROUP_LINES:
            self._begin()

    def check(self) -> None:
        """Look whether the commits so far went well; to be called every second.

        Raises:
            VolumeError: one has failed.
        """
        if self._committing is not None and self._committing.done():
            self._committing.result()

    async def close(self) -> None:
        """Commit what was added, and close the files, also if this is cancelled.

        Raises:
            VolumeError: it can't be written.
        """
        await asyncio.shield(asyncio.create_task(self._close()))

    async def _close(self) -> None:
        try:
            await self._commit()
        finally:
            for opened in self._open or ():
                opened.close()

    async def _commit(self) -> None:
        """Make all lines durable that were added."""
        while self._pending or self._committing is not None:
            self._begin()
            assert self._committing is not None  # for the type checker: see above
            await asyncio.shield(self._committing)

    def _begin(self) -> None:
        """Begin to commit, or go on with what waits when the group before is durable."""
        self._due = True
        if self._committing is None:
            self._committing = asyncio.create_task(self._write_groups())

    async def _write_groups(self) -> None:
        """Write groups, one at a time. If that fails, nothing more is written."""
        while self._pending and (self._due or len(self._pending) >= GROUP_LINES):
            if self._timer is not None:
                self._timer.cancel()
            self._due = False
            rows, self._pending, self._bytes = self._pending, [], 0
            await asyncio.to_thread(self._write, rows)
        self._committing = None

    def _write(self, rows: list[Row]) -> None:
        with failures():
            if self._open is None:
                self._lines.parent.mkdir(parents=True, exist_ok=True)
                self._open = self._lines.open("xb", 0), self._records.open("xb", 0)
                sync_directory(self._lines.parent)
            lines, records = self._open
            texts, made = bytearray(), bytearray()
            for row in rows:
                text = row.text + b"\n"
                numbers = (row.prompt_tokens, row.output_tokens, self._offset, len(text))
                head = (row.number, row.failed, *numbers, zlib.crc32(text))
                record = _RECORD.pack(*head, 0)[:_CHECKED]
                made += record + zlib.crc32(record).to_bytes(4, "little")
                texts += text
                self._offset += len(text)
            check_space(self._lines.parent, len(texts))
            _append(lines, texts)
            _append(records, made)


def finished(
    directory: Path, cut: Mapping[str, int] | None = None, *, texts: bool = False
) -> dict[int, Finished]:
    """Return the finished lines of all parts, by number.

    Of a line that is there twice an answer counts, not an error, and otherwise the first.

    Args:
        directory: of the parts.
        cut: what counts of each file of records, in bytes, by its name; None: all of all.
        texts: whether to read the texts, too, and leave out those that are damaged.

    Raises:
        OSError: they can't be read.
    """
    found: dict[int, Finished] = {}
    for records in sorted(directory.glob(f"*{RECORDS}")):
        most = None if cut is None else cut.get(records.name, 0)
        for line in _sound(records, most) if texts else _read(records, most):
            if line.number not in found or (found[line.number].failed and not line.failed):
                found[line.number] = line
    return found


def sizes(directory: Path) -> dict[str, int]:
    """Return what is there now, as a cut for ``finished``."""
    return {path.name: path.stat().st_size for path in sorted(directory.glob(f"*{RECORDS}"))}


def text_of(line: Finished, opened: BinaryIO) -> bytes:
    """Read a line's text from its part, with its line feed."""
    opened.seek(line.offset)
    return opened.read(line.length)


def _sound(records: Path, most: int | None) -> Iterator[Finished]:
    """Yield the lines whose texts are as they were written."""
    with records.with_suffix(LINES).open("rb") as opened:
        for line in _read(records, most):
            if zlib.crc32(text_of(line, opened)) == line.checksum:
                yield line


def _read(records: Path, most: int | None) -> Iterator[Finished]:
    """Yield the lines that are complete: records and texts may be cut when a machine dies."""
    part = records.with_suffix(LINES)
    try:
        content = records.read_bytes()[:most]
        size = part.stat().st_size
    except FileNotFoundError:
        # The batch is being removed.
        return
    for begin in range(0, len(content) - _RECORD.size + 1, _RECORD.size):
        *values, checksum = _RECORD.unpack_from(content, begin)
        if zlib.crc32(content[begin : begin + _CHECKED]) == checksum:
            number, failed, prompt, output, offset, length, of_text = values
            if offset + length <= size:
                yield Finished(number, bool(failed), prompt, output, offset, length, of_text, part)


def _append(opened: FileIO, content: bytearray) -> None:
    """Write all of the content, and make it durable."""
    left = memoryview(content)
    while left:
        # A disk that has no room for all may take a part; the next try says why.
        left = left[opened.write(left) or 0 :]
    os.fsync(opened.fileno())
