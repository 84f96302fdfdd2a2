"""Partial files, also of a worker whose lease another one has taken over."""

import threading
from pathlib import Path

import pytest

from worker.store import File
from worker.store.download.partial import Partial, Stopped
from worker.store.refusals import WrongChecksumError

FILE = File("config.json", 10, "0" * 40)


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def test_who_was_overtaken_empties_nothing(tmp_path: Path, stop: threading.Event) -> None:
    path = tmp_path / "blob"
    with Partial(path, FILE, stop) as partial:
        partial.write(b"0123456789")
        stop.set()
        with pytest.raises(Stopped):
            partial.truncate(0)
    assert path.read_bytes() == b"0123456789"


def test_who_was_overtaken_makes_nothing(tmp_path: Path, stop: threading.Event) -> None:
    stop.set()
    with pytest.raises(Stopped):
        Partial(tmp_path / "blob", FILE, stop)
    assert not (tmp_path / "blob").exists()


def test_more_than_was_announced_is_not_written(tmp_path: Path, stop: threading.Event) -> None:
    with Partial(tmp_path / "blob", FILE, stop) as partial:
        partial.write(b"01234567")
        with pytest.raises(WrongChecksumError):
            partial.write(b"89a")
    assert (tmp_path / "blob").read_bytes() == b"01234567"
