"""Files whose ids follow from their jobs: of attempts that come again, or at once, one counts."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.errors import Conflict, NoSuchObject
from worker.files import PREFIX, Files, StoredFile
from worker.volume import Volume, ids


def received(files: Files, content: bytes, id: str) -> StoredFile:
    return files.receive([content], filename="a.jsonl", id=id)


def test_a_file_that_comes_again_is_the_one_that_is_there(files: Files, volume: Volume) -> None:
    derived, other = ids.derived(PREFIX, "job-1"), ids.derived(PREFIX, "job-2")
    first = received(files, b"first", derived)
    assert first.id == derived
    assert files.receive([b"fi", b"", b"rst"], filename="again", id=derived) == first
    (volume.root / "inbox" / "own.jsonl").write_bytes(b"own")
    own = files.refer("inbox/own.jsonl", purpose="batch", id=other)
    # It is the caller's own: the file is what names it.
    (volume.root / "inbox" / "own.jsonl").unlink()
    assert files.refer("./inbox/own.jsonl", purpose="batch", id=other) == own


@pytest.mark.parametrize("content", [b"", b"firs", b"first.", b"First"])
def test_another_content_under_an_id_that_exists_is_refused(files: Files, content: bytes) -> None:
    derived = ids.derived(PREFIX, "job-1")
    first = received(files, b"first", derived)
    with pytest.raises(Conflict, match="another file"):
        received(files, content, derived)
    assert files.content(first).read_bytes() == b"first"


def test_another_place_under_an_id_that_exists_is_refused(files: Files, volume: Volume) -> None:
    derived, other = ids.derived(PREFIX, "job-1"), ids.derived(PREFIX, "job-2")
    for name in ("a", "b"):
        (volume.root / "inbox" / name).write_bytes(b"same")
    files.refer("inbox/a", purpose="batch", id=derived)
    received(files, b"same", other)
    for again in (derived, other):
        with pytest.raises(Conflict, match="another file"):
            files.refer("inbox/b", purpose="batch", id=again)
    with pytest.raises(Conflict, match="another file"):
        received(files, b"same", derived)


def test_an_attempt_that_broke_off_does_not_stop_the_next_one(files: Files, kept: Path) -> None:
    derived = ids.derived(PREFIX, "job-1")
    (kept / derived).mkdir(parents=True)
    (kept / derived / ".content.of-a-dead-one").write_bytes(b"ha")
    (kept / derived / "content").write_bytes(b"half")
    with pytest.raises(NoSuchObject):
        files.get(derived)
    file = received(files, b"whole", derived)
    assert files.content(file).read_bytes() == b"whole"


def test_an_attempt_that_is_given_up_leaves_the_file_of_another_one(files: Files) -> None:
    derived = ids.derived(PREFIX, "job-1")

    def write() -> Iterator[bytes]:
        yield b"half"
        received(files, b"of the other", derived)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.receive(write(), filename="late", id=derived)
    file = files.get(derived)
    assert files.content(file).read_bytes() == b"of the other"


def test_an_attempt_that_comes_second_leaves_the_content_that_is_in_use(files: Files) -> None:
    derived = ids.derived(PREFIX, "job-1")
    with files.writing(filename="a", purpose="batch", id=derived) as second:
        second.write(b"same")
        first = received(files, b"same", derived)
        used = files.content(first).stat()
    now = files.content(first).stat()
    assert (now.st_ino, now.st_mtime_ns) == (used.st_ino, used.st_mtime_ns)


def test_of_two_attempts_that_end_at_once_the_first_one_gives_the_content(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived, link = ids.derived(PREFIX, "job-1"), os.link
    used: list[os.stat_result] = []

    def late(*places: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        used.append(files.content(received(files, b"same", derived)).stat())
        link(*places)

    monkeypatch.setattr(os, "link", late)
    now = files.content(received(files, b"same", derived)).stat()
    (before,) = used
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_disk_without_links_has_files(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Path) -> None:
        raise OSError(errno.ENOTSUP, "no links")

    monkeypatch.setattr(os, "link", none)
    file = received(files, b"abc", ids.derived(PREFIX, "job-1"))
    assert files.content(file).read_bytes() == b"abc"
