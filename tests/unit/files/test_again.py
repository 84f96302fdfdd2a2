"""Files whose ids follow from their jobs: of attempts that come again, or at once, one counts."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from worker.errors import Conflict, NoSuchObject
from worker.files import PREFIX, Files, StoredFile
from worker.volume import ids

ID, OTHER = ids.derived(PREFIX, "job-1"), ids.derived(PREFIX, "job-2")


def received(files: Files, content: bytes, id: str = ID) -> StoredFile:
    return files.receive([content], filename="a.jsonl", id=id)


def written(files: Files, file: StoredFile) -> tuple[int, int]:
    """Return which file on the disk has the content, and when it was written."""
    found = files.content(file).stat()
    return found.st_ino, found.st_mtime_ns


def test_a_file_that_comes_again_is_the_one_that_is_there(files: Files, volume: Path) -> None:
    first = received(files, b"first")
    assert first.id == ID
    assert files.receive([b"fi", b"", b"rst"], filename="again", id=ID) == first
    (volume / "inbox" / "own.jsonl").write_bytes(b"own")
    own = files.refer("inbox/own.jsonl", purpose="batch", id=OTHER)
    # It is the caller's own: the file is what names it.
    (volume / "inbox" / "own.jsonl").unlink()
    assert files.refer("./inbox/own.jsonl", purpose="batch", id=OTHER) == own


@pytest.mark.parametrize("content", [b"", b"firs", b"first.", b"First"])
def test_another_file_under_an_id_is_refused(files: Files, volume: Path, content: bytes) -> None:
    first = received(files, b"first")
    for name in ("a", "b"):
        (volume / "inbox" / name).write_bytes(b"first")
    files.refer("inbox/a", purpose="batch", id=OTHER)
    for again in (
        partial(received, files, content),
        partial(received, files, b"first", OTHER),
        *(partial(files.refer, "inbox/b", purpose="batch", id=id) for id in (ID, OTHER)),
    ):
        with pytest.raises(Conflict, match="another file"):
            again()
    assert files.content(first).read_bytes() == b"first"


def test_an_attempt_given_up_leaves_the_file_of_another(files: Files, stored_files: Path) -> None:
    dead = stored_files / f".{ID}.of-a-dead-one"
    dead.mkdir(parents=True)
    (dead / "content").write_bytes(b"half")
    with pytest.raises(NoSuchObject):
        files.get(ID)

    def write() -> Iterator[bytes]:
        yield b"half"
        received(files, b"whole")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.receive(write(), filename="late", id=ID)
    assert files.content(files.get(ID)).read_bytes() == b"whole"
    assert {place.name for place in stored_files.iterdir()} == {ID, dead.name}


def test_of_two_attempts_the_first_gives_it(files: Files, stored_files: Path) -> None:
    first: list[tuple[StoredFile, tuple[int, int]]] = []

    def write() -> Iterator[bytes]:
        yield b"sa"
        file = files.receive([b"same"], filename="first", id=ID)
        first.append((file, written(files, file)))
        yield b"me"

    late = files.receive(write(), filename="late", id=ID)
    assert [(late, written(files, late))] == first
    assert [place.name for place in stored_files.iterdir()] == [ID]
