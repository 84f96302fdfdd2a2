"""Finished lines: each attempt at a shard appends to files of its own, and commits in groups.

A part is two files. One has the lines of the output as they will be written, the other a record of
fixed size for each: it is written when its line is durable, so a line that is torn has no record.
"""

import asyncio
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from worker.errors import VolumeError
from worker.volume import failures, sync_directory

# A group is committed when it is so large, or so old.
GROUP_LINES = 64
GROUP_S = 1.0
# Bytes that may wait for a slow disk.
MOST_PENDING = 64_000_000

LINES, RECORDS = ".jsonl", ".records"
_RECORD = struct.Struct("<IBIIQII")
_CHECKED = _RECORD.size - 4


@dataclass(frozen=True, slots=True)
class Finished:
    """A line that is durable.

    Args:
        number: of the input's line.
        failed: whether its answer is an error.
        prompt_tokens: that its answer counts; ``output_tokens``: likewise.
        offset: where its text is in the part, in bytes; ``length``: with its line feed.
        part: the file.
    """

    number: int
    failed: bool
    prompt_tokens: int
    output_tokens: int
    offset: int
    length: int
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
        self._since = 0.0
        self._offset = 0
        self._open: tuple[BinaryIO, BinaryIO] | None = None
        self._broken = False
        self._committing: asyncio.Task[None] | None = None

    async def add(self, row: Row) -> None:
        """Take a line; commit, while others come, if it is time to.

        Raises:
            VolumeError: an earlier commit has failed.
        """
        if not self._pending:
            self._since = time.monotonic()
        self._pending.append(row)
        self._bytes += len(row.text)
        self.commit_if_due()
        if self._bytes > MOST_PENDING:
            await self.commit()

    def commit_if_due(self) -> None:
        """Begin to commit, if a group is full or old; to be called every second.

        Raises:
            VolumeError: an earlier commit has failed.
        """
        if self._committing is not None and self._committing.done():
            self._committing.result()
            self._committing = None
        old = time.monotonic() - self._since > GROUP_S
        due = self._pending and (old or len(self._pending) >= GROUP_LINES)
        if due and self._committing is None:
            self._committing = asyncio.create_task(self._commit())

    async def commit(self) -> None:
        """Make all lines durable that were added.

        Raises:
            VolumeError: they can't be written.
        """
        while self._committing is not None or self._pending:
            committing = self._committing or asyncio.create_task(self._commit())
            self._committing = None
            # A job that is cancelled here has its lines on the disk.
            await asyncio.shield(committing)

    async def close(self) -> None:
        """Commit, and close the files."""
        try:
            await self.commit()
        finally:
            for opened in self._open or ():
                opened.close()

    async def _commit(self) -> None:
        rows, self._pending, self._bytes = self._pending, [], 0
        await asyncio.to_thread(self._write, rows)

    def _write(self, rows: list[Row]) -> None:
        if self._broken:
            # Nobody knows how much of the last group is there: the next attempt has another part.
            raise VolumeError("the volume fails: an earlier group of lines could not be written")
        self._broken = True
        with failures():
            if self._open is None:
                self._lines.parent.mkdir(parents=True, exist_ok=True)
                self._open = self._lines.open("xb"), self._records.open("xb")
                sync_directory(self._lines.parent)
            lines, records = self._open
            made = bytearray()
            for row in rows:
                lines.write(row.text + b"\n")
                length = len(row.text) + 1
                numbers = (row.prompt_tokens, row.output_tokens, self._offset, length)
                record = _RECORD.pack(row.number, row.failed, *numbers, 0)[:_CHECKED]
                made += record + zlib.crc32(record).to_bytes(4, "little")
                self._offset += length
            _sync(lines)
            records.write(made)
            _sync(records)
        self._broken = False


def finished(directory: Path) -> dict[int, Finished]:
    """Return the finished lines of all parts, by number: of a line that is there twice, the first.

    Raises:
        OSError: they can't be read.
    """
    found: dict[int, Finished] = {}
    for records in sorted(directory.glob(f"*{RECORDS}")):
        for line in _read(records):
            found.setdefault(line.number, line)
    return found


def _read(records: Path) -> Iterator[Finished]:
    content = records.read_bytes()
    part = records.with_suffix(LINES)
    for begin in range(0, len(content) - _RECORD.size + 1, _RECORD.size):
        *values, checksum = _RECORD.unpack_from(content, begin)
        # What was being written when a machine died.
        if zlib.crc32(content[begin : begin + _CHECKED]) == checksum:
            number, failed, prompt, output, offset, length = values
            yield Finished(number, bool(failed), prompt, output, offset, length, part)


def _sync(opened: BinaryIO) -> None:
    opened.flush()
    os.fsync(opened.fileno())
