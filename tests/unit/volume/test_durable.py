"""Files and directories appear complete, the first one stays, even if the disk fails."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.volume import fill, mount_disk, remount

from worker.errors import VolumeError
from worker.volume import translate_os_errors
from worker.volume.durable import (
    atomic_directory,
    publish_directory,
    remove_directory,
    write_chunks,
    write_file,
    write_once,
)

Write = Callable[[Path, bytes], object]
WITH_BOTH_FUNCTIONS = pytest.mark.parametrize("write", [write_file, write_once])


@WITH_BOTH_FUNCTIONS
def test_files_are_written_alone_into_new_directories_with_the_right_modes(
    tmp_path: Path, write: Write
) -> None:
    before = os.umask(0o022)
    for directory in ("new/worker/batches/b", "out/results"):
        write(tmp_path / directory / "file", b"content")
    os.umask(before)
    places = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*")}
    files = {name: path.read_bytes() for name, path in places.items() if path.is_file()}
    assert files == dict.fromkeys(("new/worker/batches/b/file", "out/results/file"), b"content")
    modes = {name: stat.S_IMODE(places[name].stat().st_mode) for name in places.keys() - files}
    assert modes.pop("new/worker") == 0o700
    assert set(modes.values()) == {0o755}


def test_readers_see_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [letter * 100_000 for letter in (b"a", b"b")]
    write_file(path, contents[0])

    def write_often() -> None:
        for _ in range(50):
            write_file(path, contents[1])

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write_often)
        contents_read = set()
        while not writing.done():
            contents_read.add(path.read_bytes())
        writing.result()
    assert contents_read <= {*contents}
    assert path.read_bytes() == contents[1]
    assert [*tmp_path.iterdir()] == [path]


def test_one_of_many_concurrent_calls_of_write_once_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor(8) as pool:
        contents = [b"%d" % number * 10_000 for number in range(8)]
        results = [*pool.map(lambda content: write_once(path, content), contents)]
    assert results.count(True) == 1
    assert not write_once(path, b"later")
    assert path.read_bytes() == contents[results.index(True)]
    assert [*tmp_path.iterdir()] == [path]


def test_write_once_works_on_a_disk_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no links")

    monkeypatch.setattr(os, "link", refuse)
    assert write_once(tmp_path / "file", b"content")
    assert not write_once(tmp_path / "file", b"other")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"content"]


@WITH_BOTH_FUNCTIONS
def test_only_the_old_file_remains_on_a_full_or_read_only_disk(
    tmp_path: Path, write: Write
) -> None:
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        write_file(disk / "old", b"old")
        filler = fill(disk)
        with (
            pytest.raises(VolumeError, match="the volume is full") as exc_info,
            translate_os_errors(),
        ):
            write(disk / "new", b"a" * 8192)
        assert str(disk) not in exc_info.value.message
        with pytest.raises(VolumeError, match="full"), translate_os_errors():
            write_file(disk / "old", b"a" * 8192)
        assert {*disk.iterdir()} == {disk / "old", filler}
        assert (disk / "old").read_bytes() == b"old"
        filler.unlink()
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="the volume is read-only"), translate_os_errors():
            write(disk / "new", b"new")
        assert [*disk.iterdir()] == [disk / "old"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EDQUOT, "quota"), "the volume is full"),
        (PermissionError(errno.EACCES, "no", "/a/path"), "the volume may not be written to"),
        (OSError(errno.EIO, "no", "/a/path"), "the volume fails: Input/output error"),
        (OSError("no number"), "the volume fails: OSError"),
    ],
)
def test_errors_of_the_file_system_are_reported_without_paths(error: OSError, message: str) -> None:
    with pytest.raises(VolumeError) as exc_info, translate_os_errors():
        raise error
    assert (exc_info.value.message, exc_info.value.status) == (message, 507)
    with pytest.raises(ValueError, match="mine"), translate_os_errors():
        raise ValueError("mine")


def test_a_file_and_its_directory_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    write_file(tmp_path / "file", b"content")
    assert synced == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_parts_that_fail_leave_no_file(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_chunks(tmp_path / "file", parts())
    assert [*tmp_path.iterdir()] == []


def make(directory: Path, content: str = "content") -> None:
    with atomic_directory(directory) as hidden:
        (hidden / "file").write_text(content)


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
        make(directory, "first")
    assert [*tmp_path.iterdir()] == [directory]
    assert (directory / "file").read_text() == "first"


def test_a_published_directory_is_removed_if_another_one_has_its_name(tmp_path: Path) -> None:
    make(tmp_path / "first", "first")
    make(tmp_path / "second", "second")
    publish_directory(tmp_path / "second", tmp_path / "first")
    assert [*tmp_path.iterdir()] == [tmp_path / "first"]
    assert (tmp_path / "first" / "file").read_text() == "first"


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("of somebody else")
    with pytest.raises(NotADirectoryError):
        make(tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_files_are_durable_before_the_directory_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []
    directory = tmp_path / "one"
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((os.fstat(number).st_ino, directory.exists()))
    )
    make(directory)
    assert ([*tmp_path.iterdir()], (directory / "file").read_text()) == ([directory], "content")
    places = (directory / "file", directory, tmp_path, tmp_path.parent)
    inodes = [path.stat().st_ino for path in places]
    assert synced == [*zip(inodes, (False, False, True, True), strict=True)]


def test_removing_a_link_leaves_its_target_and_a_directory_may_be_removed_twice(
    tmp_path: Path,
) -> None:
    make(tmp_path / "one")
    (tmp_path / "link").symlink_to("one")
    remove_directory(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    for _ in range(2):
        remove_directory(tmp_path / "one")
    assert [*tmp_path.iterdir()] == []
