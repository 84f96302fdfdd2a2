"""What has expired is removed once an hour, whoever of the workers does it."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import settings
from support.processes.background import HUNG_S

from worker import sweep
from worker.errors import VolumeError
from worker.files import DAY_S, Files
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import FineTuneResult, StoredFineTune
from worker.long_work.record import REQUEST
from worker.settings import Settings
from worker.volume import ids

SetClock = Callable[[float], None]


@pytest.fixture
def swept_settings(tmp_path: Path) -> Settings:
    """Settings with a volume, on which one file expires after an hour and one after two."""
    found = settings(FILES_PATH=str(tmp_path))
    for seconds in (3600, 7200):
        Files.of(found).receive([b"a"], filename=str(seconds), expires_after_s=seconds)
    return found


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "worker" / "swept"


@pytest.fixture(autouse=True)
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Set the clock, which stands still, by seconds from now."""
    begun = time.time()

    def set_(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: begun + seconds)

    set_(0)
    return set_


def stored(root: Path) -> int:
    return len([*(root / "worker" / "files").iterdir()])


def make_sick(file: Path) -> None:
    """Let every attempt to read a file fail, as where a network disk is sick."""
    file.unlink()
    file.mkdir()


def created(fine_tunes: FineTunes, rows: str, *, ended: float | None = None) -> FineTune:
    """Create a fine-tune on rows, which may have ended."""
    new = StoredFineTune(
        id=ids.new(FineTunes.prefix), created_at=1, base="demo", training_file=rows
    )
    found = fine_tunes.create(new)
    if ended is not None:
        found.end(FineTuneResult(status="cancelled", at=int(ended)))
    return found


def test_of_all_workers_one_sweeps_in_an_hour(
    swept_settings: Settings, tmp_path: Path, mark: Path, set_clock: SetClock
) -> None:
    assert sweep.sweep(swept_settings) == 0
    assert mark.exists()
    set_clock(3601)
    os.utime(mark, (time.time() - 3500,) * 2)
    assert sweep.sweep(swept_settings) == 0
    assert stored(tmp_path) == 2
    os.utime(mark, (time.time() - 3700,) * 2)
    assert sweep.sweep(swept_settings) == 1
    assert [file.filename for file in Files.of(swept_settings).list().data] == ["7200"]
    assert stored(tmp_path) == 1


def test_a_mark_of_the_future_stops_nobody(swept_settings: Settings, mark: Path) -> None:
    mark.touch()
    os.utime(mark, (time.time() + 10**6,) * 2)
    sweep.sweep(swept_settings)
    assert abs(mark.stat().st_mtime - time.time()) < 600


@pytest.mark.parametrize("name", ["FILES_PATH", "BASE_PATH"])
@pytest.mark.parametrize("exists", [False, True])
def test_where_nothing_is_stored_nothing_is_made(tmp_path: Path, name: str, exists: bool) -> None:
    root = tmp_path / "volume"
    if exists:
        root.mkdir()
    assert sweep.sweep(settings(**{name: str(root)})) == 0
    assert root.exists() == exists
    assert not exists or [*root.iterdir()] == []


def test_what_can_not_be_read_stays(swept_settings: Settings, tmp_path: Path) -> None:
    fine_tunes = FineTunes(swept_settings)
    rows = fine_tunes.files.receive([b"a"], filename="rows.csv", purpose="fine-tune")
    sick = created(fine_tunes, rows.id)
    held, over = (created(fine_tunes, rows.id, ended=1) for _ in range(2))
    make_sick(sick.directory / REQUEST)
    damaged = created(fine_tunes, rows.id)
    (damaged.directory / REQUEST).write_text("{")
    lease = held.leases("run") / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.symlink_to(lease)
    with pytest.raises(VolumeError):
        held.held()
    file = Files.of(swept_settings).list().data[0]
    make_sick(tmp_path / "worker" / "files" / file.id / "meta.json")
    assert sweep.sweep(swept_settings) == 1
    assert all(one.directory.exists() for one in (sick, damaged, held))
    assert not over.directory.exists()


def test_a_file_that_can_not_be_read_keeps_no_other(
    swept_settings: Settings, tmp_path: Path, set_clock: SetClock
) -> None:
    sick = Files.of(swept_settings).receive([b"a"], filename="sick")
    make_sick(tmp_path / "worker" / "files" / sick.id / "meta.json")
    set_clock(7_000)
    assert sweep.sweep(swept_settings) == 1
    assert stored(tmp_path) == 2


def test_fine_tunes_that_ended_long_ago_go_and_rows_that_others_need_stay(
    swept_settings: Settings, set_clock: SetClock
) -> None:
    fine_tunes = FineTunes(swept_settings)
    rows = fine_tunes.files.receive(
        [b"a"], filename="rows.csv", purpose="fine-tune", expires_after_s=3600
    )
    waiting = created(fine_tunes, rows.id)
    created(fine_tunes, rows.id, ended=time.time())
    set_clock((swept_settings.files_retention_days + 1) * DAY_S)
    sweep.sweep(swept_settings)
    assert [one.id for one in fine_tunes.all()] == [waiting.id]
    assert fine_tunes.files.get(rows.id, expired=True).filename == "rows.csv"


def test_it_goes_on_every_hour_whatever_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = [VolumeError("sick"), KeyError("a defect"), 2, 0]
    pauses: list[float] = []
    over = threading.Event()

    def swept(_: Settings) -> int:
        if not outcomes:
            over.set()
            threading.Event().wait()  # for ever: the thread ends with the process
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return int(outcome)

    monkeypatch.setattr(sweep, "sweep", swept)
    monkeypatch.setattr(time, "sleep", pauses.append)
    caplog.set_level("INFO", "worker.sweep")
    sweep.begin(settings())
    assert over.wait(HUNG_S)
    assert pauses == [3600.0] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "what has expired could not be removed: sick",
        "what has expired could not be removed",
        "2 files, batches and fine-tunes had expired and were removed",
    ]
