"""Atomic directories: they appear when complete, the first one stays, and removal is one step."""

import os
from pathlib import Path

import pytest

from worker.volume.directories import atomic_directory, remove_directory


def fill(directory: Path, content: str = "content") -> None:
    with atomic_directory(directory) as hidden:
        (hidden / "file").write_text(content)


def test_a_directory_appears_with_its_files(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "one"
    fill(directory)
    assert [*directory.parent.iterdir()] == [directory]
    assert (directory / "file").read_text() == "content"


def test_an_exception_leaves_no_directory(tmp_path: Path) -> None:
    def fill_partially() -> None:
        with atomic_directory(tmp_path / "one") as hidden:
            (hidden / "file").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill_partially()
    assert [*tmp_path.iterdir()] == []


def test_the_directory_of_a_faster_attempt_stays(tmp_path: Path) -> None:
    directory = tmp_path / "one"
    with atomic_directory(directory) as hidden:
        (hidden / "file").write_text("late")
        fill(directory, "first")
    assert [*tmp_path.iterdir()] == [directory]
    assert (directory / "file").read_text() == "first"


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("of somebody else")
    with pytest.raises(NotADirectoryError):
        fill(tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_files_are_durable_before_the_directory_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []
    directory = tmp_path / "one"
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, directory.exists()))
    )
    fill(directory)
    inodes = [path.stat().st_ino for path in (directory / "file", directory, tmp_path)]
    assert synced == [*zip(inodes, (False, False, True), strict=True)]


def test_removing_a_link_leaves_its_target_and_a_directory_may_be_removed_twice(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "one")
    (tmp_path / "link").symlink_to("one")
    remove_directory(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    for _ in range(2):
        remove_directory(tmp_path / "one")
    assert [*tmp_path.iterdir()] == []
