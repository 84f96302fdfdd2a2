"""Files are uploaded, once or again, referenced, written, read, listed, deleted and swept."""

import json
import os
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.effort import loop_iterations
from support.volume import make_files

from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject
from worker.files import DAY_S, FILE_PREFIX, METADATA, Files, StoredFile
from worker.volume import Volume, ids
from worker.volume.pages import TimeIndex


def receive(files: Files, content: bytes = b"abc", **named: Any) -> StoredFile:
    return files.receive([content], filename="a.jsonl", **named)


def paths_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_an_uploaded_file_can_be_read_again(files: Files, stored_files: Path) -> None:
    before = int(time.time())
    file = files.receive([b"ab", b"", b"c"], filename="../ä.jsonl", purpose="batch")
    assert ids.is_id(FILE_PREFIX, file.id)
    assert before <= file.created_at <= time.time()
    assert (file.bytes, file.filename, file.purpose) == (3, "../ä.jsonl", "batch")
    assert file.expires_at == file.created_at + 30 * DAY_S
    assert files.get(file.id) == file
    assert files.content_path(file).read_bytes() == b"abc"
    assert paths_in(stored_files) == [file.id, f"{file.id}/content", f"{file.id}/meta.json"]
    # Other users of the machine can't open the directory.
    assert stat.S_IMODE(stored_files.parent.stat().st_mode) == 0o700
    # A file may be empty, and its default purpose is fine-tuning.
    file = files.receive([], filename="empty")
    assert (file.bytes, file.purpose) == (0, "fine-tune")
    assert files.content_path(file).read_bytes() == b""


def fail_half_way() -> Iterator[bytes]:
    yield b"half"
    raise RuntimeError


def test_a_file_exists_once_its_content_is_complete_and_not_after_a_failure(
    files: Files, stored_files: Path
) -> None:
    with pytest.raises(RuntimeError):
        files.receive(fail_half_way(), filename="broken")
    assert paths_in(stored_files) == []
    id = ids.new_id(FILE_PREFIX)
    with files.create(id, "out.jsonl", "batch_output") as write:
        write(b"line\n")
        with pytest.raises(NoSuchObject):
            files.get(id)
    assert (files.get(id).bytes, files.get(id).purpose) == (5, "batch_output")


def test_a_file_expires_at_the_callers_time_or_after_the_retention(
    files: Files, volume: Path
) -> None:
    file = receive(files, expires_after_s=3600)
    assert file.expires_at == file.created_at + 3600
    unlimited, half_day = (make_files(Volume(volume), retention_days=days) for days in (0.0, 0.5))
    assert receive(unlimited).expires_at is None
    assert receive(unlimited, expires_after_s=3600).expires_at is not None
    file = receive(half_day)
    assert file.expires_at == file.created_at + DAY_S // 2


def test_a_file_of_the_maximum_size_is_received_and_a_larger_one_is_refused(
    files: Files, stored_files: Path
) -> None:
    assert receive(files, bytes(1_000_000)).bytes == 1_000_000
    before = paths_in(stored_files)
    parts = iter([bytes(400_000)] * 100)
    with pytest.raises(InputTooLarge, match=r"1,000,000 bytes \(FILES_MAX_MB\)") as caught:
        files.receive(parts, filename="large")
    assert caught.value.param == "file"
    # The upload stops at the first part beyond the limit.
    assert len(list(parts)) == 97
    assert paths_in(stored_files) == before


def index_of(volume: Volume) -> TimeIndex:
    return TimeIndex(volume.worker_path("index/files"))


def add_files(volume: Volume, count: int) -> None:
    """Create empty files, one a second until now."""
    now, root, index = int(time.time()), volume.worker_path("files"), index_of(volume)
    for age in range(count):
        id = ids.new_id("file-")
        (root / id).mkdir(parents=True)
        file = StoredFile(
            id=id,
            bytes=0,
            created_at=now - age,
            filename="a",
            purpose="batch" if age % 2 else "vision",
            expires_at=None,
        )
        (root / id / METADATA).write_text(file.model_dump_json())
        index.add(file.index_entry)


@pytest.mark.parametrize("purpose", [None, "batch"])
def test_a_page_of_many_files_costs_as_much_as_one_of_few(
    tmp_path: Path, purpose: str | None
) -> None:
    def measure(count: int) -> float:
        volume = Volume(tmp_path / str(count))
        add_files(volume, count)
        files = make_files(volume)
        middle = files.list(limit=count // 2).data[-1].id
        page = partial(files.list, limit=5, purpose=purpose)
        assert len(page().data) == len(page(after=middle).data) == 5
        return loop_iterations(lambda: (page(), page(after=middle), page(order="asc")))

    # Reading all files costs twenty times as much.
    assert measure(600) < 8 * measure(30)


def test_an_object_that_was_created_twice_is_listed_once(files: Files) -> None:
    stored = receive(files)
    slower = stored.model_copy(update={"created_at": stored.created_at - 5})
    index_of(files.volume).add(slower.index_entry)
    assert [file.created_at for file in files.list().data] == [stored.created_at]


@pytest.mark.parametrize("path", ["inbox/a.jsonl", "s3://bucket/inbox/a.jsonl"])
def test_deleting_a_reference_leaves_the_callers_file(
    files: Files, volume: Path, path: str
) -> None:
    own_file = volume / "inbox" / "a.jsonl"
    own_file.write_bytes(b"own")
    file = files.add_volume_file(path, purpose="batch", filename="shown.jsonl")
    assert (file.bytes, file.filename) == (3, "shown.jsonl")
    assert files.content_path(files.get(file.id)) == own_file
    files.delete(file.id)
    assert own_file.read_bytes() == b"own"


# tests/unit/volume covers all paths, and strings that are no ids.
@pytest.mark.parametrize("path", ["inbox/directory", "inbox/missing.jsonl", "../out"])
def test_a_path_that_is_not_a_callers_file_is_refused(
    files: Files, volume: Path, stored_files: Path, path: str
) -> None:
    (volume / "inbox" / "directory").mkdir()
    with pytest.raises(InvalidInput):
        files.add_volume_file(path, purpose="batch")
    assert not stored_files.exists()


def test_a_later_link_is_not_followed_out_of_the_volume(files: Files, volume: Path) -> None:
    own_file = volume / "inbox" / "a.jsonl"
    own_file.write_bytes(b"own")
    file = files.add_volume_file("inbox/a.jsonl", purpose="batch")
    own_file.unlink()
    with pytest.raises(NoSuchObject, match="no longer"):
        files.content_path(file)
    own_file.symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        files.content_path(file)


@pytest.mark.parametrize("id", ["", "file-" + "a" * 24, "file-" + "/" * 24])
def test_a_string_that_is_not_a_file_id_is_not_found(files: Files, id: str) -> None:
    receive(files)
    for method in (files.get, files.delete):
        with pytest.raises(NoSuchObject) as exc_info:
            method(id)
        assert exc_info.value.status == 404


def test_an_expired_file_is_not_found(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    file = receive(files, expires_after_s=3600)
    monkeypatch.setattr(time, "time", lambda: file.created_at + 3599)
    assert files.get(file.id) == file
    monkeypatch.setattr(time, "time", lambda: file.created_at + 3600)
    with pytest.raises(NoSuchObject):
        files.get(file.id)
    assert files.list().data == ()
    # A batch that started earlier can still read the file.
    assert files.get(file.id, include_expired=True) == file


def test_complete_files_are_listed_by_purpose(files: Files, stored_files: Path) -> None:
    assert files.list().data == ()
    batch, other, broken = receive(files, purpose="batch"), receive(files), receive(files)
    (stored_files / ids.new_id(FILE_PREFIX)).mkdir()
    (stored_files / broken.id / "meta.json").write_text(json.dumps({"id": broken.id}))
    with pytest.raises(NoSuchObject):
        files.get(broken.id)
    assert {file.id for file in files.list().data} == {batch.id, other.id}
    assert files.list(purpose="batch").data == (batch,)
    assert files.list(purpose="vision").data == ()


def test_a_file_is_deleted_unless_it_is_in_use(files: Files, stored_files: Path) -> None:
    file = receive(files)
    with pytest.raises(Conflict, match="a fine-tune that has not ended"):
        files.delete(file.id, in_use={file.id})
    assert files.get(file.id) == file
    files.delete(file.id)
    with pytest.raises(NoSuchObject):
        files.delete(file.id)
    assert paths_in(stored_files) == []


def test_expired_files_are_removed_unless_they_are_in_use(
    files: Files, volume: Path, stored_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_file = volume / "inbox" / "own.jsonl"
    own_file.write_bytes(b"own")
    receive(files, expires_after_s=3600)
    files.add_volume_file("inbox/own.jsonl", purpose="batch", expires_after_s=3600)
    used, unexpired = receive(files, expires_after_s=3600), receive(files)
    assert files.sweep(set()) == 0
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert files.sweep({used.id}) == 2
    assert {path.name for path in stored_files.iterdir()} == {used.id, unexpired.id}
    assert own_file.read_bytes() == b"own"


@pytest.mark.parametrize("name", [ids.new_id(FILE_PREFIX), ".removed.0123"])
def test_incomplete_files_are_removed_after_a_day(
    files: Files, stored_files: Path, name: str
) -> None:
    assert files.sweep(set()) == 0
    assert not stored_files.exists()
    incomplete = stored_files / name
    incomplete.mkdir(parents=True)
    (incomplete / ".content.0123").write_bytes(b"half")
    # Ages of the directory and of its content: the writer may be alive if either is young.
    for ages, in_use, removed in (
        ((DAY_S - 600, DAY_S - 600), set(), 0),
        ((DAY_S + 600, 0), set(), 0),
        ((DAY_S + 600, DAY_S + 600), {name}, 0),
        ((DAY_S + 600, DAY_S + 600), set(), 1),
    ):
        for path, age in zip((incomplete, incomplete / ".content.0123"), ages, strict=True):
            os.utime(path, (time.time() - age,) * 2)
        assert files.sweep(in_use) == removed
    assert [*stored_files.iterdir()] == []


# Ids that derive from jobs: repeated and concurrent uploads make one file.
ID, OTHER = ids.derive_id(FILE_PREFIX, "job-1"), ids.derive_id(FILE_PREFIX, "job-2")


def content_stat(files: Files, file: StoredFile) -> tuple[int, int]:
    """Return the inode and the modification time of a file's content."""
    status = files.content_path(file).stat()
    return status.st_ino, status.st_mtime_ns


def test_a_repeated_upload_returns_the_first_file(files: Files, volume: Path) -> None:
    first = receive(files, b"first", id=ID)
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
    first = receive(files, b"first", id=ID)
    for name in ("a", "b"):
        (volume / "inbox" / name).write_bytes(b"first")
    files.add_volume_file("inbox/a", purpose="batch", id=OTHER)
    for repeat in (
        partial(receive, files, content, id=ID),
        partial(receive, files, b"first", id=OTHER),
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
        receive(files, b"whole", id=ID)
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
