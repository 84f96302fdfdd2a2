"""The limits on callers' objects; files on full, read-only and missing volumes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.volume import fill, make_files, make_quota, mount_disk, remount

from worker import volume as volumes
from worker.errors import VolumeError
from worker.files import Files
from worker.files.quota import BLOCK_BYTES
from worker.volume import Volume, check_space
from worker.volume.adapters import ORIGIN_FILE

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
    environ = {"FILES_PATH": str(volume), "BASE_PATH": str(volume), "FILES_MAX_TOTAL_MB": "1"}
    return Files.from_settings(settings(**environ))


@pytest.fixture
def _measure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat no measurement of the used space."""
    monkeypatch.setattr("worker.files.quota.VALID_S", 3600.0)
    monkeypatch.setattr("worker.files.quota.RECHECK_S", 3600.0)


@pytest.mark.usefixtures("_measure_once")
def test_files_beyond_the_total_limit_are_refused_until_one_is_deleted(
    limited_files: Files, stored_files: Path
) -> None:
    first = receive(limited_files)
    expect_refusal(limited_files)
    assert [path.name for path in stored_files.iterdir()] == [first]
    second = receive(limited_files, 440_000)
    expect_refusal(limited_files, 100_000)
    limited_files.delete(second)
    assert receive(limited_files, 440_000)


@pytest.mark.usefixtures("_measure_once")
def test_a_refused_file_takes_no_space(limited_files: Files) -> None:
    for _ in range(9):
        with pytest.raises(VolumeError, match=FULL):
            limited_files.receive([bytes(200_000)] * 6, filename="a")
    assert receive(limited_files)


@pytest.mark.parametrize(
    "path",
    [
        "worker/batches/batch_a/parts/0.a.jsonl",
        "worker/fine_tunes/ftjob-a/attempts/000001.a/checkpoints/1/weights",
        "worker/receipts/2026-01-01/a.jsonl",
        "out/deep/array.json",
        "adapters/trained/adapter_model.safetensors",
    ],
)
def test_all_that_is_written_for_callers_counts_towards_the_total(
    limited_files: Files, volume: Path, path: str
) -> None:
    (volume / path).parent.mkdir(parents=True)
    (volume / path).write_bytes(bytes(HALF))
    (volume / path).with_name(ORIGIN_FILE).touch()
    expect_refusal(limited_files)
    with pytest.raises(VolumeError, match=FULL):
        list(limited_files.chunks_within_quota([bytes(HALF)]))


def test_adapters_and_files_of_the_operator_and_of_callers_do_not_count_towards_the_total(
    limited_files: Files, volume: Path
) -> None:
    (volume / "adapters" / "own").mkdir(parents=True)
    (volume / "adapters" / "own" / "adapter_model.safetensors").write_bytes(bytes(3 * HALF))
    (volume / "inbox" / "own").write_bytes(bytes(3 * HALF))
    assert limited_files.add_volume_file("inbox/own", purpose="batch").bytes == 3 * HALF
    assert receive(limited_files)


def test_too_many_adapters_of_fine_tunes_are_noticed(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.files.quota.MAX_ADAPTERS", 2)
    config = settings(FILES_PATH=str(volume), BASE_PATH=str(volume))
    for name in ("own", "a", "b"):
        Files.from_settings(config).quota.check_adapter_count()
        (volume / "adapters" / name).mkdir(parents=True)
        if name != "own":
            (volume / "adapters" / name / ORIGIN_FILE).touch()
    with pytest.raises(VolumeError, match=r"2 adapters .*DELETE /v1/models"):
        Files.from_settings(config).quota.check_adapter_count()


def test_small_files_count_as_whole_blocks(limited_files: Files) -> None:
    for _ in range(40):
        receive(limited_files, 1)
    # Each has its content, metadata and directory, and an entry in the index.
    expect_refusal(limited_files, 1_000_000 - 4 * 40 * BLOCK_BYTES)


def test_a_maximum_number_of_files_is_accepted(volume: Path) -> None:
    few = Files.from_settings(settings(FILES_PATH=str(volume), FILES_MAX_COUNT="3"))
    (volume / "inbox" / "own").write_bytes(b"own")
    first, *_ = [receive(few, 1) for _ in range(3)]
    for add in (lambda: receive(few, 1), lambda: few.add_volume_file("inbox/own", purpose="batch")):
        with pytest.raises(VolumeError, match=r"3 files, the maximum \(FILES_MAX_COUNT\)"):
            add()
    # The worker's own files, such as outputs of batches, are not refused.
    with few.create("file-" + "a" * 24, "out.jsonl", "batch_output") as write:
        write(b"{}")
    few.delete("file-" + "a" * 24)
    few.delete(first)
    assert receive(few, 1)


def test_space_that_another_worker_frees_is_noticed_before_a_refusal(
    limited_files: Files, stored_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.files.quota.RECHECK_S", -1.0)
    monkeypatch.setattr("worker.files.quota.VALID_FACTOR", 0.0)
    first = receive(limited_files)
    expect_refusal(limited_files)
    (stored_files / first / "content").unlink()
    assert receive(limited_files)


def test_an_old_measurement_of_the_total_is_repeated(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.files.quota.VALID_S", 0.0)
    monkeypatch.setattr("worker.files.quota.VALID_FACTOR", 0.0)
    quota = make_quota(Volume(volume), max_bytes=2 * HALF)
    quota.reserve(HALF // 2)
    (volume / "out").mkdir()
    (volume / "out" / "array").write_bytes(bytes(3 * HALF // 2))
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
    return make_files(Volume(disk), max_mb=100)


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
    files = make_files(Volume(tmp_path / "no", may_create_root=False))
    for method in (files.list, lambda: receive(files)):
        with pytest.raises(VolumeError, match="no network volume"):
            method()
    assert not (tmp_path / "no").exists()
