"""Volumes that are full, read-only or missing: one error, and nothing left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import fill, mounted, remount

from worker import volume
from worker.errors import VolumeError
from worker.files import Files
from worker.volume import Volume

ROOM = 2_000_000


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve nothing of the disk."""
    monkeypatch.setattr(volume, "RESERVED", 0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", ROOM) as place:
        yield place


def on(disk: Path) -> Files:
    return Files(Volume(disk), max_mb=100, retention_days=30)


def test_a_file_that_fills_the_volume_leaves_nothing(disk: Path) -> None:
    files = on(disk)
    with pytest.raises(VolumeError, match="the volume is full") as refused:
        files.receive((bytes(100_000) for _ in range(100)), filename="large")
    assert refused.value.status == 507
    assert str(disk) not in refused.value.message
    assert [*(disk / "worker" / "files").iterdir()] == []
    assert files.get(files.receive([b"small"], filename="small").id).bytes == 5


def test_on_a_volume_without_any_room_nothing_is_left(disk: Path) -> None:
    (disk / "inbox").mkdir()
    (disk / "inbox" / "own.jsonl").write_bytes(b"own")
    files = on(disk)
    kept = disk / "worker" / "files"
    kept.mkdir(parents=True)
    fill(disk)
    with pytest.raises(VolumeError, match="full"):
        files.receive([b"a" * 4096], filename="a")
    with pytest.raises(VolumeError, match="full"):
        files.refer("inbox/own.jsonl", purpose="batch")
    assert [*kept.iterdir()] == []


def test_a_read_only_volume_is_read_and_says_so_when_it_is_written_to(disk: Path) -> None:
    files = on(disk)
    file = files.receive([b"abc"], filename="a")
    remount(disk, "ro")
    assert files.content(files.get(file.id)).read_bytes() == b"abc"
    assert files.list().data == (file,)
    with pytest.raises(VolumeError, match="read-only"):
        files.receive([b"abc"], filename="b")
    with pytest.raises(VolumeError, match="read-only"):
        files.delete(file.id)
    assert files.get(file.id) == file


def test_a_missing_volume_is_said_to_be_missing(tmp_path: Path) -> None:
    files = Files(Volume(tmp_path / "no", optional=False), max_mb=1, retention_days=1)
    for act in (files.list, lambda: files.receive([], filename="a")):
        with pytest.raises(VolumeError, match="no network volume"):
            act()
    assert not (tmp_path / "no").exists()
