"""Files whose ids derive from jobs: repeated and concurrent uploads make one file."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from worker.errors import Conflict, NoSuchObject
from worker.files import FILE_PREFIX, Files, StoredFile
from worker.volume import ids

ID, OTHER = ids.derive_id(FILE_PREFIX, "job-1"), ids.derive_id(FILE_PREFIX, "job-2")


def receive(files: Files, content: bytes, id: str = ID) -> StoredFile:
    return files.receive([content], filename="a.jsonl", id=id)


def content_stat(files: Files, file: StoredFile) -> tuple[int, int]:
    """Return the inode and the modification time of a file's content."""
    status = files.content_path(file).stat()
    return status.st_ino, status.st_mtime_ns


def test_a_repeated_upload_returns_the_first_file(files: Files, volume: Path) -> None:
    first = receive(files, b"first")
    assert first.id == ID
    assert files.receive([b"fi", b"", b"rst"], filename="again", id=ID) == first
    (volume / "inbox" / "own.jsonl").write_bytes(b"own")
    reference = files.add_volume_file("inbox/own.jsonl", purpose="batch", id=OTHER)
    # The path identifies a file of the caller, so its content may be missing.
    (volume / "inbox" / "own.jsonl").unlink()
    assert files.add_volume_file("./inbox/own.jsonl", purpose="batch", id=OTHER) == reference


@pytest.mark.parametrize("content", [b"", b"firs", b"first.", b"First"])
def test_another_file_with_the_same_id_is_refused(
    files: Files, volume: Path, content: bytes
) -> None:
    first = receive(files, b"first")
    for name in ("a", "b"):
        (volume / "inbox" / name).write_bytes(b"first")
    files.add_volume_file("inbox/a", purpose="batch", id=OTHER)
    for repeat in (
        partial(receive, files, content),
        partial(receive, files, b"first", OTHER),
        *(partial(files.add_volume_file, "inbox/b", purpose="batch", id=id) for id in (ID, OTHER)),
    ):
        with pytest.raises(Conflict, match="another file"):
            repeat()
    assert files.content_path(first).read_bytes() == b"first"


def test_a_failed_upload_leaves_the_file_of_another_attempt(
    files: Files, stored_files: Path
) -> None:
    abandoned = stored_files / f".{ID}.of-a-dead-one"
    abandoned.mkdir(parents=True)
    (abandoned / "content").write_bytes(b"half")
    with pytest.raises(NoSuchObject):
        files.get(ID)

    def write() -> Iterator[bytes]:
        yield b"half"
        receive(files, b"whole")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.receive(write(), filename="late", id=ID)
    assert files.content_path(files.get(ID)).read_bytes() == b"whole"
    assert {path.name for path in stored_files.iterdir()} == {ID, abandoned.name}


def test_the_upload_that_finishes_first_makes_the_file(files: Files, stored_files: Path) -> None:
    first: list[tuple[StoredFile, tuple[int, int]]] = []

    def write() -> Iterator[bytes]:
        yield b"sa"
        file = files.receive([b"same"], filename="first", id=ID)
        first.append((file, content_stat(files, file)))
        yield b"me"

    later_file = files.receive(write(), filename="late", id=ID)
    assert [(later_file, content_stat(files, later_file))] == first
    assert [path.name for path in stored_files.iterdir()] == [ID]
