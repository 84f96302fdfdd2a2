"""The hourly removal of expired objects, by one of the workers."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import settings
from support.processes.background import HUNG_S
from support.volume import all_records

from worker import sweep
from worker.errors import VolumeError
from worker.files import DAY_S, Files
from worker.fine_tunes.record import FineTune, FineTuneResult, FineTunes, StoredFineTune
from worker.long_work.records import REQUEST
from worker.settings import Settings
from worker.volume import ids

SetClock = Callable[[float], None]


@pytest.fixture
def volume_settings(tmp_path: Path) -> Settings:
    """Settings with a volume that has one file which expires after an hour and one after two."""
    result = settings(FILES_PATH=str(tmp_path))
    for seconds in (3600, 7200):
        Files.from_settings(result).receive([b"a"], filename=str(seconds), expires_after_s=seconds)
    return result


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "worker" / "swept"


@pytest.fixture(autouse=True)
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Return a function that stops the clock at a number of seconds from now."""
    start = time.time()

    def set_seconds(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: start + seconds)

    set_seconds(0)
    return set_seconds


def count_files(root: Path) -> int:
    return len([*(root / "worker" / "files").iterdir()])


def make_unreadable(file: Path) -> None:
    """Make every attempt to read a file fail, as on a broken network disk."""
    file.unlink()
    file.mkdir()


def create_fine_tune(fine_tunes: FineTunes, rows: str, *, ended: float | None = None) -> FineTune:
    """Create a fine-tune with a file of rows; ``ended`` is the time at which it was cancelled."""
    new = StoredFineTune(
        id=ids.new_id(FineTunes.id_prefix), created_at=1, base="demo", training_file=rows
    )
    found = fine_tunes.create(new)
    if ended is not None:
        found.end(FineTuneResult(status="cancelled", at=int(ended)))
    return found


def test_only_one_worker_sweeps_within_an_hour(
    volume_settings: Settings, tmp_path: Path, mark: Path, set_clock: SetClock
) -> None:
    assert sweep.sweep(volume_settings) == 0
    assert mark.exists()
    set_clock(3601)
    os.utime(mark, (time.time() - 3500,) * 2)
    assert sweep.sweep(volume_settings) == 0
    assert count_files(tmp_path) == 2
    os.utime(mark, (time.time() - 3700,) * 2)
    assert sweep.sweep(volume_settings) == 1
    assert [file.filename for file in Files.from_settings(volume_settings).list().data] == ["7200"]
    assert count_files(tmp_path) == 1


def test_a_mark_in_the_future_does_not_prevent_sweeping(
    volume_settings: Settings, mark: Path
) -> None:
    mark.touch()
    os.utime(mark, (time.time() + 10**6,) * 2)
    sweep.sweep(volume_settings)
    assert abs(mark.stat().st_mtime - time.time()) < 600


@pytest.mark.parametrize("name", ["FILES_PATH", "BASE_PATH"])
@pytest.mark.parametrize("exists", [False, True])
def test_sweeping_an_empty_volume_creates_nothing(tmp_path: Path, name: str, exists: bool) -> None:
    root = tmp_path / "volume"
    if exists:
        root.mkdir()
    assert sweep.sweep(settings(**{name: str(root)})) == 0
    assert root.exists() == exists
    assert not exists or [*root.iterdir()] == []


def test_unreadable_data_is_not_removed(volume_settings: Settings, tmp_path: Path) -> None:
    fine_tunes = FineTunes(volume_settings)
    rows = fine_tunes.files.receive([b"a"], filename="rows.csv", purpose="fine-tune")
    unreadable = create_fine_tune(fine_tunes, rows.id)
    leased, expired = (create_fine_tune(fine_tunes, rows.id, ended=1) for _ in range(2))
    make_unreadable(unreadable.directory / REQUEST)
    damaged = create_fine_tune(fine_tunes, rows.id)
    (damaged.directory / REQUEST).write_text("{")
    lease = leased.lease_directory("run") / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.symlink_to(lease)
    with pytest.raises(VolumeError):
        leased.is_leased()
    file = Files.from_settings(volume_settings).list().data[0]
    make_unreadable(tmp_path / "worker" / "files" / file.id / "meta.json")
    assert sweep.sweep(volume_settings) == 1
    assert all(one.directory.exists() for one in (unreadable, damaged, leased))
    assert not expired.directory.exists()


def test_an_unreadable_file_does_not_prevent_the_removal_of_others(
    volume_settings: Settings, tmp_path: Path, set_clock: SetClock
) -> None:
    unreadable = Files.from_settings(volume_settings).receive([b"a"], filename="sick")
    make_unreadable(tmp_path / "worker" / "files" / unreadable.id / "meta.json")
    set_clock(7_000)
    assert sweep.sweep(volume_settings) == 1
    assert count_files(tmp_path) == 2


def test_old_fine_tunes_are_removed_and_rows_that_others_need_are_not(
    volume_settings: Settings, set_clock: SetClock
) -> None:
    fine_tunes = FineTunes(volume_settings)
    rows = fine_tunes.files.receive(
        [b"a"], filename="rows.csv", purpose="fine-tune", expires_after_s=3600
    )
    waiting = create_fine_tune(fine_tunes, rows.id)
    create_fine_tune(fine_tunes, rows.id, ended=time.time())
    set_clock((volume_settings.files_retention_days + 1) * DAY_S)
    sweep.sweep(volume_settings)
    assert [one.id for one in all_records(fine_tunes)] == [waiting.id]
    assert fine_tunes.files.get(rows.id, include_expired=True).filename == "rows.csv"


def test_sweeping_continues_every_hour_after_any_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = [VolumeError("sick"), KeyError("a defect"), 2, 0]
    pauses: list[float] = []
    finished = threading.Event()

    def fake_sweep(_: Settings) -> int:
        if not outcomes:
            finished.set()
            threading.Event().wait()  # never returns: the thread ends with the process
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return int(outcome)

    monkeypatch.setattr(sweep, "sweep", fake_sweep)
    monkeypatch.setattr(time, "sleep", pauses.append)
    caplog.set_level("INFO", "worker.sweep")
    sweep.start_sweeping(settings())
    assert finished.wait(HUNG_S)
    assert pauses == [3600.0] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "expired files could not be removed: sick",
        "expired files could not be removed",
        "2 files, batches, fine-tunes and receipts had expired and were removed",
    ]
