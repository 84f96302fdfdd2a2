"""Small files: whole or not there, also where the disk refuses them."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.volume.disks import fill, mounted, remount

from worker.errors import VolumeError
from worker.volume import failures, write, write_once, write_parts

Write = Callable[[Path, bytes], object]
IN_BOTH_WAYS = pytest.mark.parametrize("way", [write, write_once])


@IN_BOTH_WAYS
def test_files_lie_alone_in_new_directories_of_their_modes(tmp_path: Path, way: Write) -> None:
    before = os.umask(0o022)
    for directory in ("new/worker/batches/b", "out/results"):
        way(tmp_path / directory / "file", b"content")
    os.umask(before)
    places = {str(one.relative_to(tmp_path)): one for one in tmp_path.rglob("*")}
    files = {name: one.read_bytes() for name, one in places.items() if one.is_file()}
    assert files == dict.fromkeys(("new/worker/batches/b/file", "out/results/file"), b"content")
    modes = {name: stat.S_IMODE(places[name].stat().st_mode) for name in places.keys() - files}
    assert modes.pop("new/worker") == 0o700
    assert set(modes.values()) == {0o755}


def test_the_later_content_counts_and_readers_see_either(tmp_path: Path) -> None:
    place = tmp_path / "file"
    contents = [letter * 100_000 for letter in (b"a", b"b")]
    write(place, contents[0])

    def write_often() -> None:
        for _ in range(50):
            write(place, contents[1])

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write_often)
        seen = set()
        while not writing.done():
            seen.add(place.read_bytes())
        writing.result()
    assert seen <= {*contents}
    assert place.read_bytes() == contents[1]
    assert [*tmp_path.iterdir()] == [place]


def test_of_many_that_write_once_at_once_one_has_written(tmp_path: Path) -> None:
    place = tmp_path / "file"
    with ThreadPoolExecutor(8) as pool:
        contents = [b"%d" % number * 10_000 for number in range(8)]
        wrote = [*pool.map(lambda content: write_once(place, content), contents)]
    assert wrote.count(True) == 1
    assert not write_once(place, b"later")
    assert place.read_bytes() == contents[wrote.index(True)]
    assert [*tmp_path.iterdir()] == [place]


def test_a_disk_without_links_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no links")

    monkeypatch.setattr(os, "link", refuse)
    assert write_once(tmp_path / "file", b"content")
    assert not write_once(tmp_path / "file", b"other")
    assert [place.read_bytes() for place in tmp_path.iterdir()] == [b"content"]


@IN_BOTH_WAYS
def test_on_a_full_or_read_only_disk_the_old_file_stays_alone(tmp_path: Path, way: Write) -> None:
    with mounted(tmp_path / "disk", 1_000_000) as disk:
        write(disk / "old", b"old")
        filler = fill(disk)
        with pytest.raises(VolumeError, match="the volume is full") as refused, failures():
            way(disk / "new", b"a" * 8192)
        assert str(disk) not in refused.value.message
        with pytest.raises(VolumeError, match="full"), failures():
            write(disk / "old", b"a" * 8192)
        assert {*disk.iterdir()} == {disk / "old", filler}
        assert (disk / "old").read_bytes() == b"old"
        filler.unlink()
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="the volume is read-only"), failures():
            way(disk / "new", b"new")
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
def test_what_a_file_system_says_is_told_without_its_paths(error: OSError, message: str) -> None:
    with pytest.raises(VolumeError) as raised, failures():
        raise error
    assert (raised.value.message, raised.value.status) == (message, 507)
    with pytest.raises(ValueError, match="mine"), failures():
        raise ValueError("mine")


def test_a_directory_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    write(tmp_path / "file", b"content")
    assert synced == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_parts_that_end_with_an_error_leave_nothing(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"first"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_parts(tmp_path / "file", parts())
    assert [*tmp_path.iterdir()] == []
