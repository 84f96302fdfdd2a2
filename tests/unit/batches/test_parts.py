"""Parts of batches: what a machine that dies leaves of them is read, and nothing damaged."""

import asyncio
import json
import os
import threading
from io import FileIO
from itertools import product
from pathlib import Path

import pytest
from support.processes.background import HUNG_S

from worker.batches import parts
from worker.batches.parts import LINES, RECORDS, Finished, Part, Row, finished, text_of
from worker.errors import VolumeError

COUNT = 4


def row(number: int, *, failed: bool = False, text: str = "") -> Row:
    content = json.dumps({"number": number, "text": text or "x" * number}).encode()
    return Row(number, failed, 3, 2, content)


async def written(directory: Path, name: str, *rows: Row) -> None:
    part = Part(directory, name)
    for one in rows:
        await part.add(one)
    await part.close()


def text(line: Finished) -> bytes:
    with line.part.open("rb") as opened:
        return text_of(line, opened)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts with one whole file of lines, and one of records."""
    directory = tmp_path_factory.mktemp("whole")
    asyncio.run(written(directory, "0.a", *(row(number) for number in range(1, COUNT + 1))))
    return directory


def damaged(whole: Path, tmp_path: Path, kind: str, content: bytes) -> Path:
    """Copy a part, with another content of one of its files."""
    for source in whole.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / f"0.a{kind}").write_bytes(content)
    return tmp_path


def expect_sound(directory: Path) -> int:
    """Check that all that is read is as it was written; return how many lines."""
    found = finished(directory, texts=True)
    assert list(found) == sorted(found)
    for number, line in found.items():
        assert text(line) == row(number).text + b"\n"
    return len(found)


@pytest.mark.parametrize("kind", [LINES, RECORDS])
def test_files_cut_at_any_byte_are_read_up_to_there(whole: Path, tmp_path: Path, kind: str) -> None:
    content = (whole / f"0.a{kind}").read_bytes()
    for length in range(len(content) + 1):
        cut = content[:length]
        there = cut.count(b"\n") if kind == LINES else length // (len(content) // COUNT)
        torn = damaged(whole, tmp_path, kind, cut)
        # Also counted without the texts: a line behind the end was never finished.
        assert expect_sound(torn) == len(finished(torn)) == there


@pytest.mark.parametrize("kind", [LINES, RECORDS])
@pytest.mark.parametrize("filled", [0, 0xFF])
def test_blocks_that_a_disk_has_lost_are_no_lines(
    whole: Path, tmp_path: Path, kind: str, filled: int
) -> None:
    before = (whole / f"0.a{kind}").read_bytes()
    for begin, length in product(range(0, len(before), 5), (1, 16, 64)):
        lost = len(before[begin : begin + length])
        content = before[:begin] + bytes([filled]) * lost + before[begin + lost :]
        sound = expect_sound(damaged(whole, tmp_path, kind, content))
        assert (sound < COUNT) == (content != before)


async def test_an_answer_counts_more_than_an_error_of_another_attempt(tmp_path: Path) -> None:
    for name in ("0.a", "0.c"):
        await written(tmp_path, name, row(1, failed=True, text=name))
    await written(tmp_path, "0.b", row(1, text="0.b"))
    (line,) = finished(tmp_path).values()
    assert (line.failed, line.part.stem) == (False, "0.b")


async def test_a_line_is_durable_within_a_second_though_no_other_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts.GROUP_S == 1
    monkeypatch.setattr(parts, "GROUP_S", 0.05)
    part = Part(tmp_path, "0.a")
    await part.add(row(1))
    assert finished(tmp_path) == {}
    async with asyncio.timeout(HUNG_S):
        while not finished(tmp_path):
            await asyncio.sleep(0.05)
    await part.close()


async def test_records_come_after_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, fsync = tmp_path / f"0.a{RECORDS}", os.fsync
    synced: list[tuple[str, bool]] = []

    def noting(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((place.name, records.stat().st_size > 0))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    await written(tmp_path, "0.a", row(1))
    names = (tmp_path.name, f"0.a{LINES}", records.name)
    assert synced == [*zip(names, (False, False, True), strict=True)]


async def test_groups_are_written_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = threading.Lock()
    append = parts._append

    def alone(opened: FileIO, content: bytearray) -> None:
        assert busy.acquire(blocking=False), "two groups at once"
        try:
            append(opened, content)
        finally:
            busy.release()

    monkeypatch.setattr(parts, "_append", alone)
    monkeypatch.setattr(parts, "MOST_PENDING", 100)
    part = Part(tmp_path, "0.a")
    adding = [asyncio.create_task(part.add(row(number))) for number in range(300)]
    await asyncio.sleep(0.01)
    cancelled = {number for number in range(100, 200) if adding[number].cancel()}
    await asyncio.wait(adding)
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with asyncio.timeout(HUNG_S):
        # All that was taken is there, though nobody waits for it any more.
        while len(finished(tmp_path)) < 300 - len(cancelled):
            await asyncio.sleep(0.01)
    assert set(finished(tmp_path, texts=True)) == set(range(300)) - cancelled


async def test_a_failed_group_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(opened: FileIO, content: bytearray) -> None:
        opened.write(bytes(content)[:5])
        raise OSError(28, "No space left on device")

    part = Part(tmp_path, "0.a")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "_append", full)
        await part.add(row(1))
        part._begin()
        with pytest.raises(VolumeError, match="full"):
            await part._commit()
    with pytest.raises(VolumeError, match="full"):
        await part.add(row(2))
    with pytest.raises(VolumeError, match="full"):
        await part.close()
    assert finished(tmp_path) == {}
