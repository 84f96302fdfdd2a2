"""What has expired is removed once an hour, whoever of the workers does it."""

import os
import time
from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker import sweep
from worker.files import Files
from worker.settings import Settings


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
