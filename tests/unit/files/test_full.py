"""Volumes that are full, read-only or missing, and how many bytes files may have together."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.volume.disks import fill, mounted, remount

from worker import volume as volumes
from worker.errors import VolumeError
from worker.files import Files
from worker.files.quota import Quota
from worker.volume import Volume, check_space

FULL = r"1 MB together \(FILES_MAX_TOTAL_MB\)"
HALF = 510_000


def receive(files: Files, size: int = HALF) -> str:
    return files.receive([bytes(size)], filename="a").id


def refuses(files: Files, size: int = HALF, reason: str = FULL) -> None:
    with pytest.raises(VolumeError, match=reason) as refused:
        receive(files, size)
    assert refused.value.status == 507


@pytest.fixture
def limited_files(volume: Path) -> Files:
    """Files of which all have 1 MB together."""
    return Files.of(settings(FILES_PATH=str(volume), FILES_MAX_TOTAL_MB="1"))


def test_files_that_would_have_too_much_together_are_refused_until_one_is_deleted(
    limited_files: Files, stored_files: Path
) -> None:
    first = receive(limited_files)
    refuses(limited_files)
    assert [path.name for path in stored_files.iterdir()] == [first]
    there = sum(path.stat().st_size for path in (stored_files / first).iterdir())
    second = receive(limited_files, 1_000_000 - there)
    refuses(limited_files)
    limited_files.delete(second)
    assert receive(limited_files, 480_000)


def test_outputs_of_batches_count_too(limited_files: Files, volume: Path) -> None:
    (volume / "out" / "deep").mkdir(parents=True)
    (volume / "out" / "deep" / "array.json").write_bytes(bytes(HALF))
    refuses(limited_files)
    with pytest.raises(VolumeError, match=FULL):
        list(limited_files.counted([bytes(HALF)]))


def test_what_callers_have_put_there_does_not_count(limited_files: Files, volume: Path) -> None:
    (volume / "inbox" / "own").write_bytes(bytes(3 * HALF))
    assert limited_files.refer("inbox/own", purpose="batch").bytes == 3 * HALF
    assert receive(limited_files)


def test_what_another_worker_removes_is_seen_before_a_refusal(
    limited_files: Files, stored_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = receive(limited_files)
    monkeypatch.setattr("worker.files.quota.REFUSALS_S", -1.0)
    refuses(limited_files)
    (stored_files / first / "content").unlink()
    assert receive(limited_files)


def test_an_old_measurement_is_made_again(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = Quota(Volume(volume), 2 * HALF)
    quota.take(HALF // 2)
    (volume / "out").mkdir()
    (volume / "out" / "array").write_bytes(bytes(3 * HALF // 2))
    quota.take(HALF // 2)
    monkeypatch.setattr("worker.files.quota.VALID_S", -1.0)
    quota.forget()
    with pytest.raises(VolumeError, match=FULL):
        quota.take(HALF)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 4_000_000) as place:
        (place / "inbox").mkdir()
        (place / "inbox" / "own").write_bytes(b"own")
        yield place


@pytest.fixture
def _unreserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve nothing of the disk."""
    monkeypatch.setattr(volumes, "RESERVED", 0)


def on(disk: Path) -> Files:
    return Files(Volume(disk), max_mb=100, retention_days=30)


@pytest.mark.usefixtures("_unreserved")
def test_a_file_that_fills_the_volume_leaves_nothing(disk: Path) -> None:
    files = on(disk)
    with pytest.raises(VolumeError, match="the volume is full") as refused:
        files.receive((bytes(100_000) for _ in range(100)), filename="large")
    assert refused.value.status == 507
    assert str(disk) not in refused.value.message
    assert [*(disk / "worker" / "files").iterdir()] == []
    assert files.get(receive(files, 5)).bytes == 5


def refuses_all(files: Files) -> None:
    """Check that a disk is full for one byte, and for a file of the caller's own."""
    refuses(files, 1, "the volume is full")
    with pytest.raises(VolumeError, match="the volume is full"):
        files.refer("inbox/own", purpose="batch")


@pytest.mark.usefixtures("_unreserved")
def test_on_a_volume_without_any_room_nothing_is_left(disk: Path) -> None:
    directory = disk / "worker" / "files"
    directory.mkdir(parents=True)
    fill(disk)
    refuses_all(on(disk))
    assert [*directory.iterdir()] == []


def test_a_twentieth_of_a_disk_stays_free(disk: Path) -> None:
    fill(disk, left=300_000)
    assert receive(on(disk), 10_000)
    fill(disk, left=100_000)
    refuses_all(on(disk))


def test_a_large_disk_keeps_some_megabytes(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(disk, left=100_000)
    monkeypatch.setattr(volumes, "RESERVED", 50_000)
    check_space(disk / "not" / "there", 40_000)
    with pytest.raises(VolumeError, match="the volume is full"):
        check_space(disk, 60_000)


def test_a_read_only_volume_is_read_and_says_so_when_it_is_written_to(disk: Path) -> None:
    files = on(disk)
    file = files.get(receive(files, 3))
    remount(disk, "ro")
    assert files.content(files.get(file.id)).read_bytes() == bytes(3)
    assert files.list().data == (file,)
    for write in (lambda: receive(files), lambda: files.delete(file.id)):
        with pytest.raises(VolumeError, match="read-only"):
            write()
    assert files.get(file.id) == file


def test_a_missing_volume_is_said_to_be_missing(tmp_path: Path) -> None:
    files = Files(Volume(tmp_path / "no", optional=False), max_mb=1, retention_days=1)
    for act in (files.list, lambda: receive(files)):
        with pytest.raises(VolumeError, match="no network volume"):
            act()
    assert not (tmp_path / "no").exists()
