"""Directories appear when they are whole, the first of several stays, and disappear at once."""

import os
from pathlib import Path

import pytest

from worker.volume.directories import appear, vanish


def fill(place: Path, content: str = "content") -> None:
    with appear(place) as hidden:
        (hidden / "file").write_text(content)


def test_a_directory_appears_with_its_files(tmp_path: Path) -> None:
    place = tmp_path / "new" / "one"
    fill(place)
    assert [*place.parent.iterdir()] == [place]
    assert (place / "file").read_text() == "content"


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def fill_in_part() -> None:
        with appear(tmp_path / "one") as hidden:
            (hidden / "file").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill_in_part()
    assert [*tmp_path.iterdir()] == []


def test_the_directory_of_a_faster_attempt_stays(tmp_path: Path) -> None:
    place = tmp_path / "one"
    with appear(place) as hidden:
        (hidden / "file").write_text("late")
        fill(place, "first")
    assert [*tmp_path.iterdir()] == [place]
    assert (place / "file").read_text() == "first"


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("of somebody else")
    with pytest.raises(NotADirectoryError):
        fill(tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_files_are_durable_before_the_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []
    place = tmp_path / "one"
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, place.exists()))
    )
    fill(place)
    inodes = [one.stat().st_ino for one in (place / "file", place, tmp_path)]
    assert synced == [*zip(inodes, (False, False, True), strict=True)]


def test_a_directory_that_vanishes_is_gone_and_of_a_link_the_link(tmp_path: Path) -> None:
    fill(tmp_path / "one")
    (tmp_path / "link").symlink_to("one")
    vanish(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    for _ in range(2):
        vanish(tmp_path / "one")
    assert [*tmp_path.iterdir()] == []
