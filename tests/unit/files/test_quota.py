"""The bytes that files and outputs may have together, and what stays free of the disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import fill, mounted

from worker import volume as volumes
from worker.errors import VolumeError
from worker.files import Files
from worker.files.quota import Quota
from worker.settings import Settings
from worker.volume import Volume, check_space

FULL = "FILES_MAX_TOTAL_MB"
HALF = 510_000


@pytest.fixture
def files(volume: Volume) -> Files:
    return Files(volume, max_mb=1, max_total_mb=1, retention_days=30)


def receive(files: Files, size: int = HALF) -> str:
    return files.receive([bytes(size)], filename="a").id


def test_files_that_would_have_too_much_together_are_refused(files: Files, kept: Path) -> None:
    first = receive(files)
    with pytest.raises(VolumeError, match=FULL) as refused:
        receive(files)
    assert refused.value.status == 507
    assert [path.name for path in kept.iterdir()] == [first]
    there = sum(path.stat().st_size for path in (kept / first).iterdir())
    assert receive(files, 1_000_000 - there)


def test_a_deleted_file_makes_room_at_once(files: Files) -> None:
    first = receive(files)
    with pytest.raises(VolumeError, match=FULL):
        receive(files)
    files.delete(first)
    assert receive(files)


def test_outputs_of_batches_count_too(files: Files, volume: Volume) -> None:
    (volume.root / "out" / "deep").mkdir(parents=True)
    (volume.root / "out" / "deep" / "array.json").write_bytes(bytes(HALF))
    with pytest.raises(VolumeError, match=FULL):
        receive(files)
    with pytest.raises(VolumeError, match=FULL):
        list(files.counted([bytes(HALF)]))


def test_what_callers_have_put_on_the_volume_by_other_means_does_not_count(
    files: Files, volume: Volume
) -> None:
    (volume.root / "inbox" / "own").write_bytes(bytes(3 * HALF))
    assert files.refer("inbox/own", purpose="batch").bytes == 3 * HALF
    assert receive(files)


def test_what_another_worker_removes_is_seen_before_a_refusal(
    files: Files, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = receive(files)
    monkeypatch.setattr("worker.files.quota.REFUSALS_S", -1.0)
    with pytest.raises(VolumeError, match=FULL):
        receive(files)
    (kept / first / "content").unlink()
    assert receive(files)


def test_what_another_worker_writes_is_seen_when_the_measurement_is_old(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = Quota(volume, 2 * HALF)
    quota.take(HALF // 2)
    (volume.root / "out").mkdir()
    (volume.root / "out" / "array").write_bytes(bytes(3 * HALF // 2))
    quota.take(HALF // 2)
    monkeypatch.setattr("worker.files.quota.VALID_S", -1.0)
    quota.forget()
    with pytest.raises(VolumeError, match=FULL):
        quota.take(HALF)


def test_the_operator_sets_how_much_it_may_be(tmp_path: Path) -> None:
    environ = {"MODEL_NAME": "m", "FILES_PATH": str(tmp_path), "FILES_MAX_TOTAL_MB": "2"}
    files = Files.of(Settings.from_env(environ))
    receive(files)
    receive(files)
    receive(files)
    with pytest.raises(VolumeError, match=r"2 MB together \(FILES_MAX_TOTAL_MB\)"):
        receive(files)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 4_000_000) as place:
        yield place


def test_a_twentieth_of_a_disk_stays_free(disk: Path) -> None:
    fill(disk, left=300_000)
    files = Files(Volume(disk), max_mb=1, retention_days=1)
    assert receive(files, 10_000)
    fill(disk, left=100_000)
    (disk / "inbox").mkdir()
    (disk / "inbox" / "own").touch()
    for write in (lambda: receive(files, 1), lambda: files.refer("inbox/own", purpose="batch")):
        with pytest.raises(VolumeError, match="the volume is full"):
            write()


def test_a_large_disk_keeps_as_much_as_small_files_need(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(disk, left=100_000)
    monkeypatch.setattr(volumes, "RESERVED", 50_000)
    check_space(disk / "not" / "there", 40_000)
    with pytest.raises(VolumeError, match="the volume is full"):
        check_space(disk, 60_000)
