"""Files on full, read-only and missing volumes, and the limit on the total size of files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.volume.disks import fill, mount_disk, remount

from worker import volume as volumes
from worker.errors import VolumeError
from worker.files import Files
from worker.files.quota import Quota
from worker.volume import Volume, check_space

FULL = r"1 MB in total \(FILES_MAX_TOTAL_MB\)"
HALF = 510_000


def receive(files: Files, size: int = HALF) -> str:
    return files.receive([bytes(size)], filename="a").id


def expect_refusal(files: Files, size: int = HALF, reason: str = FULL) -> None:
    with pytest.raises(VolumeError, match=reason) as exc_info:
        receive(files, size)
    assert exc_info.value.status == 507


@pytest.fixture
def limited_files(volume: Path) -> Files:
    """Files with a total limit of 1 MB."""
    return Files.from_settings(settings(FILES_PATH=str(volume), FILES_MAX_TOTAL_MB="1"))


def test_files_beyond_the_total_limit_are_refused_until_one_is_deleted(
    limited_files: Files, stored_files: Path
) -> None:
    first = receive(limited_files)
    expect_refusal(limited_files)
    assert [path.name for path in stored_files.iterdir()] == [first]
    used_bytes = sum(path.stat().st_size for path in (stored_files / first).iterdir())
    second = receive(limited_files, 1_000_000 - used_bytes)
    expect_refusal(limited_files)
    limited_files.delete(second)
    assert receive(limited_files, 480_000)


def test_outputs_of_batches_count_towards_the_total(limited_files: Files, volume: Path) -> None:
    (volume / "out" / "deep").mkdir(parents=True)
    (volume / "out" / "deep" / "array.json").write_bytes(bytes(HALF))
    expect_refusal(limited_files)
    with pytest.raises(VolumeError, match=FULL):
        list(limited_files.chunks_within_quota([bytes(HALF)]))


def test_callers_own_files_do_not_count_towards_the_total(
    limited_files: Files, volume: Path
) -> None:
    (volume / "inbox" / "own").write_bytes(bytes(3 * HALF))
    assert limited_files.add_volume_file("inbox/own", purpose="batch").bytes == 3 * HALF
    assert receive(limited_files)


def test_space_that_another_worker_frees_is_noticed_before_a_refusal(
    limited_files: Files, stored_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = receive(limited_files)
    monkeypatch.setattr("worker.files.quota.RECHECK_S", -1.0)
    expect_refusal(limited_files)
    (stored_files / first / "content").unlink()
    assert receive(limited_files)


def test_an_old_measurement_of_the_total_is_repeated(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = Quota(Volume(volume), 2 * HALF)
    quota.reserve(HALF // 2)
    (volume / "out").mkdir()
    (volume / "out" / "array").write_bytes(bytes(3 * HALF // 2))
    quota.reserve(HALF // 2)
    monkeypatch.setattr("worker.files.quota.VALID_S", -1.0)
    quota.invalidate_measurement()
    with pytest.raises(VolumeError, match=FULL):
        quota.reserve(HALF)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mount_disk(tmp_path / "disk", 4_000_000) as path:
        (path / "inbox").mkdir()
        (path / "inbox" / "own").write_bytes(b"own")
        yield path


@pytest.fixture
def _reserve_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve no space on the disk."""
    monkeypatch.setattr(volumes, "MAX_RESERVED_BYTES", 0)


def files_on(disk: Path) -> Files:
    return Files(Volume(disk), max_mb=100, retention_days=30)


@pytest.mark.usefixtures("_reserve_no_space")
def test_a_file_that_fills_the_volume_leaves_no_content(disk: Path) -> None:
    files = files_on(disk)
    with pytest.raises(VolumeError, match="the volume is full") as exc_info:
        files.receive((bytes(100_000) for _ in range(100)), filename="large")
    assert exc_info.value.status == 507
    assert str(disk) not in exc_info.value.message
    assert [*(disk / "worker" / "files").iterdir()] == []
    assert files.get(receive(files, 5)).bytes == 5


def expect_full(files: Files) -> None:
    """Check that a disk is too full for one byte and for a reference to a caller's file."""
    expect_refusal(files, 1, "the volume is full")
    with pytest.raises(VolumeError, match="the volume is full"):
        files.add_volume_file("inbox/own", purpose="batch")


@pytest.mark.usefixtures("_reserve_no_space")
def test_a_refused_file_leaves_nothing_on_a_full_volume(disk: Path) -> None:
    directory = disk / "worker" / "files"
    directory.mkdir(parents=True)
    fill(disk)
    expect_full(files_on(disk))
    assert [*directory.iterdir()] == []


def test_a_twentieth_of_a_disk_stays_free(disk: Path) -> None:
    fill(disk, free=300_000)
    assert receive(files_on(disk), 10_000)
    fill(disk, free=100_000)
    expect_full(files_on(disk))


def test_the_reserved_space_of_a_large_disk_is_limited(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(disk, free=100_000)
    monkeypatch.setattr(volumes, "MAX_RESERVED_BYTES", 50_000)
    check_space(disk / "not" / "there", 40_000)
    with pytest.raises(VolumeError, match="the volume is full"):
        check_space(disk, 60_000)


def test_a_read_only_volume_can_be_read_and_rejects_writes(disk: Path) -> None:
    files = files_on(disk)
    file = files.get(receive(files, 3))
    remount(disk, "ro")
    assert files.content_path(files.get(file.id)).read_bytes() == bytes(3)
    assert files.list().data == (file,)
    for write in (lambda: receive(files), lambda: files.delete(file.id)):
        with pytest.raises(VolumeError, match="read-only"):
            write()
    assert files.get(file.id) == file


def test_a_missing_volume_is_reported(tmp_path: Path) -> None:
    files = Files(Volume(tmp_path / "no", may_create_root=False), max_mb=1, retention_days=1)
    for method in (files.list, lambda: receive(files)):
        with pytest.raises(VolumeError, match="no network volume"):
            method()
    assert not (tmp_path / "no").exists()
