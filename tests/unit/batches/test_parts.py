"""Parts of batches: whole lines survive a crash of the machine, and a cut line is ignored."""

import asyncio
import json
import os
import threading
from io import FileIO
from pathlib import Path

import pytest
from support.processes.background import HUNG_S
from support.volume import make_quota

from worker.batches import parts
from worker.batches.parts import (
    FinishedLine,
    LineCounts,
    PartWriter,
    count_finished_lines,
    open_results,
    part_path,
    part_sizes,
    read_finished_lines,
)
from worker.errors import VolumeError
from worker.volume import Volume
from worker.volume.durable import write_durably

COUNT = 3
NOTHING, ANSWER, ERROR = LineCounts(), LineCounts(1, 0, 3, 2), LineCounts(0, 1, 3, 2)


def result_of(number: int) -> bytes:
    return json.dumps({"number": number, "text": "x" * number}).encode()


def open_part(directory: Path, owner: str = "a", counts: LineCounts = NOTHING) -> PartWriter:
    path = part_path(directory, 0, owner)
    return PartWriter(path, counts, make_quota(Volume(directory)).reserve)


async def write_part(
    directory: Path,
    owner: str,
    lines: dict[int, LineCounts],
    counts: LineCounts = NOTHING,
) -> None:
    part = open_part(directory, owner, counts)
    for number, line_counts in lines.items():
        await part.add_line(number, result_of(number), line_counts)
    await part.close()


def count_shard(directory: Path, cut: dict[str, int] | None = None) -> LineCounts:
    return count_finished_lines(directory, cut).get(0, NOTHING)


def total_counts(lines: dict[int, FinishedLine]) -> LineCounts:
    return sum((line.counts for line in lines.values()), NOTHING)


@pytest.fixture(scope="module")
def whole_part(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the content of a part without damage."""
    directory = tmp_path_factory.mktemp("whole")
    lines = {number: ERROR if number == 2 else ANSWER for number in range(1, COUNT + 1)}
    asyncio.run(write_part(directory, "a", lines))
    return part_path(directory, 0, "a").read_bytes()


def expect_sound(directory: Path, content: bytes) -> int:
    """Write a part and check that every line has its original result; return their number."""
    part_path(directory, 0, "a").write_bytes(content)
    finished = read_finished_lines(directory)
    with open_results(finished.values()) as read_result:
        results = {number: read_result(line) for number, line in finished.items()}
    assert results == {number: result_of(number) for number in finished}
    return len(finished)


def test_a_part_that_is_cut_at_any_byte_is_read_up_to_the_last_whole_line(
    whole_part: bytes, tmp_path: Path
) -> None:
    for length in range(len(whole_part) + 1):
        cut = whole_part[:length]
        assert expect_sound(tmp_path, cut) == cut.count(b"\n")
        counts = total_counts(read_finished_lines(tmp_path))
        assert (counts.finished, counts.failed) == (cut.count(b"\n"), cut.count(b"\n") > 1)
        assert count_shard(tmp_path) == counts
        # An ending that was decided at this moment counts the same lines later.
        sizes = part_sizes(tmp_path)
        part_path(tmp_path, 0, "a").write_bytes(whole_part)
        assert total_counts(read_finished_lines(tmp_path, sizes)) == counts
        assert count_shard(tmp_path, sizes) == counts
    assert read_finished_lines(tmp_path, {}) == {}
    assert count_shard(tmp_path, {}) == NOTHING


@pytest.mark.parametrize("fill_byte", [0, 0xFF])
def test_lines_in_blocks_that_were_never_written_are_ignored(
    whole_part: bytes, tmp_path: Path, fill_byte: int
) -> None:
    for start in range(0, len(whole_part), 5):
        lost = len(whole_part) - start
        count = expect_sound(tmp_path, whole_part[:start] + bytes([fill_byte]) * lost)
        assert count == whole_part[:start].count(b"\n")
        assert count_shard(tmp_path).finished == count


@pytest.mark.parametrize("tail_bytes", [1, 65_536])
@pytest.mark.parametrize("size", [0, 100, 200_000])
async def test_counts_are_found_in_the_last_line_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail_bytes: int, size: int
) -> None:
    monkeypatch.setattr(parts, "TAIL_BYTES", tail_bytes)
    part = open_part(tmp_path)
    for number in range(2):
        await part.add_line(number, b'"%b"' % (b"x" * size), ANSWER)
    await part.close()
    assert count_shard(tmp_path) == ANSWER + ANSWER
    path = part_path(tmp_path, 0, "a")
    path.write_bytes(path.read_bytes()[:-1])
    assert count_shard(tmp_path) == ANSWER


async def test_counts_of_the_next_owner_include_those_of_earlier_ones(tmp_path: Path) -> None:
    await write_part(tmp_path, "a", {1: ANSWER, 2: ERROR})
    earlier = read_finished_lines(tmp_path, shard=0)
    await write_part(tmp_path, "b", {3: ANSWER}, total_counts(earlier))
    assert count_shard(tmp_path) == LineCounts(2, 1, 9, 6)
    # The first owner was only frozen, and also answers the line.
    await write_part(tmp_path, "c", {3: ANSWER}, total_counts(earlier))
    finished = read_finished_lines(tmp_path)
    assert count_shard(tmp_path) == total_counts(finished) == LineCounts(2, 1, 9, 6)
    assert finished[3].part.stem == "0.b"
    assert read_finished_lines(tmp_path, shard=1) == {}


async def test_an_answer_overrides_errors_of_other_owners(tmp_path: Path) -> None:
    for owner in ("a", "c"):
        await write_part(tmp_path, owner, {1: ERROR})
    await write_part(tmp_path, "b", {1: ANSWER})
    (line,) = read_finished_lines(tmp_path).values()
    assert (line.counts, line.part.stem) == (ANSWER, "0.b")


async def test_a_line_is_durable_within_a_second_without_further_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts.GROUP_S == 1
    monkeypatch.setattr(parts, "GROUP_S", 0.05)
    part = open_part(tmp_path)
    await part.add_line(1, result_of(1), ANSWER)
    assert read_finished_lines(tmp_path) == {}
    async with asyncio.timeout(HUNG_S):
        while not read_finished_lines(tmp_path):
            await asyncio.sleep(0.05)
    await part.close()


async def test_a_part_and_its_directories_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    synced: list[Path] = []

    def record_fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_fsync)
    directory = tmp_path / "parts"
    await write_part(directory, "a", {1: ANSWER})
    assert synced == [directory, tmp_path, part_path(directory, 0, "a")]


async def test_groups_are_written_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = threading.Lock()

    def append_exclusively(opened: FileIO, content: bytes) -> None:
        assert busy.acquire(blocking=False), "two groups are written concurrently"
        try:
            write_durably(opened, content)
        finally:
            busy.release()

    monkeypatch.setattr(parts, "write_durably", append_exclusively)
    monkeypatch.setattr(parts, "MAX_PENDING_BYTES", 100)
    part = open_part(tmp_path)
    adding = [
        asyncio.create_task(part.add_line(number, result_of(number), ANSWER))
        for number in range(1, 301)
    ]
    await asyncio.sleep(0.01)
    cancelled = {number for number in range(100, 200) if adding[number - 1].cancel()}
    await asyncio.wait(adding)
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with asyncio.timeout(HUNG_S):
        # Every accepted line is written although its caller no longer waits.
        while len(read_finished_lines(tmp_path)) < 300 - len(cancelled):
            await asyncio.sleep(0.01)
    assert set(read_finished_lines(tmp_path)) == set(range(1, 301)) - cancelled
    assert count_shard(tmp_path).finished == 300 - len(cancelled)


async def wait_for_commit_error(part: PartWriter) -> None:
    async with asyncio.timeout(HUNG_S):
        while True:
            part.raise_commit_error()
            await asyncio.sleep(0.01)


async def test_a_part_accepts_no_lines_after_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_partially(opened: FileIO, content: bytes) -> None:
        opened.write(content[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts, "GROUP_S", 0.0)
    part = open_part(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_durably", write_partially)
        await part.add_line(1, result_of(1), ANSWER)
        with pytest.raises(VolumeError, match="full"):
            await wait_for_commit_error(part)
    with pytest.raises(VolumeError, match="full"):
        await part.add_line(2, result_of(2), ANSWER)
    with pytest.raises(VolumeError, match="full"):
        await part.close()
    assert read_finished_lines(tmp_path) == {}
