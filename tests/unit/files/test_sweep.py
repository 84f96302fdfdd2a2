"""What expires and what is left half-written is removed, and nothing else."""

import os
import time
from pathlib import Path

import pytest

from worker.files import PREFIX, Files
from worker.volume import Volume, ids

DAY_S = 86_400


def aged(place: Path, seconds: float) -> None:
    """Let a directory and what is in it be so old."""
    for one in (*place.iterdir(), place) if place.is_dir() else (place,):
        os.utime(one, (time.time() - seconds,) * 2)


def test_expired_files_are_removed_unless_they_are_in_use(
    files: Files, volume: Volume, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = volume.root / "inbox" / "own.jsonl"
    own.write_bytes(b"own")
    expired = files.receive([b"a"], filename="a", expires_after_s=3600)
    used = files.receive([b"a"], filename="a", expires_after_s=3600)
    referred = files.refer("inbox/own.jsonl", purpose="batch", expires_after_s=3600)
    lasting = files.receive([b"a"], filename="a")
    assert files.sweep(set()) == 0
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert files.sweep({used.id}) == 2
    assert {place.name for place in kept.iterdir()} == {used.id, lasting.id}
    assert not {expired.id, referred.id} & {used.id, lasting.id}
    assert own.read_bytes() == b"own"


@pytest.mark.parametrize("name", [ids.new(PREFIX), ".removed.0123"])
def test_what_was_left_half_written_is_removed_after_a_day(
    files: Files, kept: Path, name: str
) -> None:
    left = kept / name
    left.mkdir(parents=True)
    (left / ".content.0123").write_bytes(b"half")
    aged(left, DAY_S - 600)
    assert files.sweep(set()) == 0
    aged(left, DAY_S + 600)
    # Its writer is alive.
    os.utime(left / ".content.0123")
    assert files.sweep(set()) == 0
    aged(left, DAY_S + 600)
    assert files.sweep({name}) == 0
    assert files.sweep(set()) == 1
    assert [*kept.iterdir()] == []


def test_a_volume_without_files_needs_no_sweep(files: Files, kept: Path) -> None:
    assert files.sweep(set()) == 0
    assert not kept.exists()
