"""Parts of batches: complete lines survive a crash of the machine, damaged lines are ignored."""

import asyncio
import json
import os
import threading
from io import FileIO
from itertools import product
from pathlib import Path

import pytest
from support.processes.background import HUNG_S
from support.volume.files import make_quota

from worker.batches import parts
from worker.batches.parts import (
    LINES,
    RECORDS,
    FinishedLine,
    PartWriter,
    PendingLine,
    read_finished_lines,
    read_line_text,
)
from worker.errors import VolumeError
from worker.volume import Volume
from worker.volume.durable import write_durably

COUNT = 4


def pending_line(number: int, *, failed: bool = False, text: str = "") -> PendingLine:
    content = json.dumps({"number": number, "text": text or "x" * number}).encode()
    return PendingLine(number, failed, 3, 2, content)


async def write_part(directory: Path, name: str, *lines: PendingLine) -> None:
    part = PartWriter(directory, name, make_quota(Volume(directory)).reserve)
    for line in lines:
        await part.add_line(line)
    await part.close()


def read_line(line: FinishedLine) -> bytes:
    with line.part.open("rb") as opened:
        return read_line_text(line, opened)


@pytest.fixture(scope="module")
def complete_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a complete part; return its directory."""
    directory = tmp_path_factory.mktemp("whole")
    asyncio.run(
        write_part(directory, "0.a", *(pending_line(number) for number in range(1, COUNT + 1)))
    )
    return directory


def copy_damaged(complete_part: Path, tmp_path: Path, kind: str, content: bytes) -> Path:
    """Copy a part, replace the content of one of its files, and return the new directory."""
    for source in complete_part.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / f"0.a{kind}").write_bytes(content)
    return tmp_path


def expect_sound(directory: Path) -> int:
    """Check that every line has its original content; return the number of lines."""
    finished = read_finished_lines(directory, check_texts=True)
    assert list(finished) == sorted(finished)
    for number, line in finished.items():
        assert read_line(line) == pending_line(number).text + b"\n"
    return len(finished)


@pytest.mark.parametrize("kind", [LINES, RECORDS])
def test_a_file_that_is_cut_at_any_byte_is_read_up_to_the_cut(
    complete_part: Path, tmp_path: Path, kind: str
) -> None:
    content = (complete_part / f"0.a{kind}").read_bytes()
    for length in range(len(content) + 1):
        cut = content[:length]
        expected_count = cut.count(b"\n") if kind == LINES else length // (len(content) // COUNT)
        directory = copy_damaged(complete_part, tmp_path, kind, cut)
        # The same without checks of texts: records of lines beyond the cut are ignored.
        assert expect_sound(directory) == len(read_finished_lines(directory)) == expected_count


@pytest.mark.parametrize("kind", [LINES, RECORDS])
@pytest.mark.parametrize("fill_byte", [0, 0xFF])
def test_lines_in_blocks_that_a_disk_lost_are_ignored(
    complete_part: Path, tmp_path: Path, kind: str, fill_byte: int
) -> None:
    before = (complete_part / f"0.a{kind}").read_bytes()
    for start, length in product(range(0, len(before), 5), (1, 16, 64)):
        lost_count = len(before[start : start + length])
        content = before[:start] + bytes([fill_byte]) * lost_count + before[start + lost_count :]
        line_count = expect_sound(copy_damaged(complete_part, tmp_path, kind, content))
        assert (line_count < COUNT) == (content != before)


async def test_an_answer_overrides_errors_of_other_attempts(tmp_path: Path) -> None:
    for name in ("0.a", "0.c"):
        await write_part(tmp_path, name, pending_line(1, failed=True, text=name))
    await write_part(tmp_path, "0.b", pending_line(1, text="0.b"))
    (line,) = read_finished_lines(tmp_path).values()
    assert (line.failed, line.part.stem) == (False, "0.b")


async def test_a_line_is_durable_within_a_second_without_further_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts.GROUP_S == 1
    monkeypatch.setattr(parts, "GROUP_S", 0.05)
    part = PartWriter(tmp_path, "0.a", make_quota(Volume(tmp_path)).reserve)
    await part.add_line(pending_line(1))
    assert read_finished_lines(tmp_path) == {}
    async with asyncio.timeout(HUNG_S):
        while not read_finished_lines(tmp_path):
            await asyncio.sleep(0.05)
    await part.close()


async def test_records_are_written_after_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, fsync = tmp_path / f"0.a{RECORDS}", os.fsync
    synced: list[tuple[str, bool]] = []

    def record_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, records.stat().st_size > 0))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_fsync)
    await write_part(tmp_path, "0.a", pending_line(1))
    names = (tmp_path.name, f"0.a{LINES}", records.name)
    assert synced == [*zip(names, (False, False, True), strict=True)]


async def test_groups_are_written_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = threading.Lock()
    append = write_durably

    def append_exclusively(opened: FileIO, content: bytearray) -> None:
        assert busy.acquire(blocking=False), "two groups are written concurrently"
        try:
            append(opened, content)
        finally:
            busy.release()

    monkeypatch.setattr(parts, "write_durably", append_exclusively)
    monkeypatch.setattr(parts, "MAX_PENDING_BYTES", 100)
    part = PartWriter(tmp_path, "0.a", make_quota(Volume(tmp_path)).reserve)
    adding = [asyncio.create_task(part.add_line(pending_line(number))) for number in range(300)]
    await asyncio.sleep(0.01)
    cancelled = {number for number in range(100, 200) if adding[number].cancel()}
    await asyncio.wait(adding)
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with asyncio.timeout(HUNG_S):
        # Every accepted line is written although its caller no longer waits.
        while len(read_finished_lines(tmp_path)) < 300 - len(cancelled):
            await asyncio.sleep(0.01)
    assert set(read_finished_lines(tmp_path, check_texts=True)) == set(range(300)) - cancelled


async def test_a_part_accepts_no_lines_after_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_partially(opened: FileIO, content: bytearray) -> None:
        opened.write(bytes(content)[:5])
        raise OSError(28, "No space left on device")

    part = PartWriter(tmp_path, "0.a", make_quota(Volume(tmp_path)).reserve)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_durably", write_partially)
        await part.add_line(pending_line(1))
        part._start_commit()
        with pytest.raises(VolumeError, match="full"):
            await part._commit()
    with pytest.raises(VolumeError, match="full"):
        await part.add_line(pending_line(2))
    with pytest.raises(VolumeError, match="full"):
        await part.close()
    assert read_finished_lines(tmp_path) == {}
