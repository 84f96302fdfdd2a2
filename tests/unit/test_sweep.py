"""What has expired is removed once an hour, whoever of the workers does it."""

import os
import time
from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker import sweep
from worker.errors import VolumeError
from worker.files import Files
from worker.fine_tunes.request import Kept, Result, Source
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.settings import Settings
from worker.volume import ids
from worker.volume.record import DAY_S, REQUEST


@pytest.fixture
def kept(tmp_path: Path) -> Settings:
    """Settings with a volume, on which one file has expired and one has not."""
    found = settings(FILES_PATH=str(tmp_path))
    files = Files.of(found)
    for seconds in (3600, 7200):
        files.receive([b"a"], filename=str(seconds), expires_after_s=seconds)
    return found


@pytest.fixture(autouse=True)
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


def names(found: Settings) -> set[str]:
    return {file.filename for file in Files.of(found).list().data}


def stored(root: Path) -> int:
    return len([*(root / "worker" / "files").iterdir()])


def test_of_all_workers_one_sweeps_in_an_hour(
    kept: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "worker" / "swept"
    assert sweep.sweep(kept) == 0
    assert mark.exists()
    later = time.time() + 3601
    monkeypatch.setattr(time, "time", lambda: later)
    os.utime(mark, (later - 3500,) * 2)
    assert sweep.sweep(kept) == 0
    assert stored(tmp_path) == 2
    os.utime(mark, (later - 3700,) * 2)
    assert sweep.sweep(kept) == 1
    assert names(kept) == {"7200"}
    assert stored(tmp_path) == 1


def test_a_mark_of_the_future_stops_nobody(kept: Settings, tmp_path: Path) -> None:
    mark = tmp_path / "worker" / "swept"
    mark.touch()
    os.utime(mark, (time.time() + 10**6,) * 2)
    sweep.sweep(kept)
    assert abs(mark.stat().st_mtime - time.time()) < 600


@pytest.mark.parametrize("name", ["FILES_PATH", "BASE_PATH"])
@pytest.mark.parametrize("exists", [False, True])
def test_where_nothing_is_kept_nothing_is_written(tmp_path: Path, name: str, exists: bool) -> None:
    root = tmp_path / "volume"
    if exists:
        root.mkdir()
    assert sweep.sweep(settings(**{name: str(root)})) == 0
    assert root.exists() == exists
    assert not exists or [*root.iterdir()] == []


def test_what_can_not_be_read_stays_and_the_rest_goes(kept: Settings, tmp_path: Path) -> None:
    fine_tunes = FineTunes.of(kept)
    sick, held, over = (
        fine_tunes.create(
            Kept(id=ids.new(PREFIX), created_at=1, base="demo", training=Source(file_id=rows.id))
        )
        for rows in [fine_tunes.files.receive([b"a"], filename="rows.csv", purpose="fine-tune")] * 3
    )
    for one in (held, over):
        one.end(Result(status="cancelled", at=1))
    # To read it fails, as it does where a network disk is sick.
    (sick.directory / REQUEST).unlink()
    (sick.directory / REQUEST).mkdir()
    lease = held.leases() / "lease-1"
    lease.parent.mkdir(parents=True)
    lease.symlink_to(lease)
    with pytest.raises(VolumeError):
        held.held()
    file = Files.of(kept).list().data[0]
    (tmp_path / "worker" / "files" / file.id / "meta.json").unlink()
    (tmp_path / "worker" / "files" / file.id / "meta.json").mkdir()
    assert sweep.sweep(kept) == 1
    assert (sick.directory.exists(), held.directory.exists()) == (True, True)
    assert not over.directory.exists()


def test_a_file_that_can_not_be_read_keeps_no_other(
    kept: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files.of(kept)
    sick = files.receive([b"a"], filename="sick")
    (tmp_path / "worker" / "files" / sick.id / "meta.json").unlink()
    (tmp_path / "worker" / "files" / sick.id / "meta.json").mkdir()
    later = time.time() + 7_000
    monkeypatch.setattr(time, "time", lambda: later)
    assert sweep.sweep(kept) == 1
    assert stored(tmp_path) == 2


def test_fine_tunes_that_ended_long_ago_go_and_rows_that_others_need_stay(
    kept: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine_tunes = FineTunes.of(kept)
    rows = fine_tunes.files.receive(
        [b"a"], filename="rows.csv", purpose="fine-tune", expires_after_s=3600
    )
    waiting, ended = (
        fine_tunes.create(
            Kept(id=ids.new(PREFIX), created_at=1, base="demo", training=Source(file_id=rows.id))
        )
        for _ in range(2)
    )
    ended.end(Result(status="cancelled", at=int(time.time())))
    later = time.time() + (kept.files_retention_days + 1) * DAY_S
    monkeypatch.setattr(time, "time", lambda: later)
    sweep.sweep(kept)
    assert [one.id for one in fine_tunes.all()] == [waiting.id]
    assert fine_tunes.files.get(rows.id, expired=True).filename == "rows.csv"
