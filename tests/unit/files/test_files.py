"""Files that are received, referred to, written, found, listed, deleted and swept."""

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject
from worker.files import DAY_S, PREFIX, Files, StoredFile
from worker.volume import Volume, ids


def received(files: Files, content: bytes = b"abc", **named: Any) -> StoredFile:
    return files.receive([content], filename="a.jsonl", **named)


def contents(directory: Path) -> list[str]:
    return sorted(str(place.relative_to(directory)) for place in directory.rglob("*"))


def test_a_file_is_received_and_found_again(files: Files, stored_files: Path) -> None:
    before = int(time.time())
    file = files.receive([b"ab", b"", b"c"], filename="../ä.jsonl", purpose="batch")
    assert ids.fits(PREFIX, file.id)
    assert before <= file.created_at <= time.time()
    assert (file.bytes, file.filename, file.purpose) == (3, "../ä.jsonl", "batch")
    assert file.expires_at == file.created_at + 30 * DAY_S
    assert files.get(file.id) == file
    assert files.content(file).read_bytes() == b"abc"
    assert contents(stored_files) == [file.id, f"{file.id}/content", f"{file.id}/meta.json"]
    # For no other user of the machine.
    assert stat.S_IMODE(stored_files.parent.stat().st_mode) == 0o700
    # An empty file is a file, and without a purpose one for fine-tunes.
    file = files.receive([], filename="empty")
    assert (file.bytes, file.purpose) == (0, "fine-tune")
    assert files.content(file).read_bytes() == b""


def broken() -> Iterator[bytes]:
    yield b"half"
    raise RuntimeError


def test_a_file_that_is_written_exists_when_its_block_ends_and_none_if_that_fails(
    files: Files, stored_files: Path
) -> None:
    with pytest.raises(RuntimeError):
        files.receive(broken(), filename="broken")
    assert contents(stored_files) == []
    id = ids.new(PREFIX)
    with files.writing(id, "out.jsonl", "batch_output") as write:
        write(b"line\n")
        with pytest.raises(NoSuchObject):
            files.get(id)
    assert (files.get(id).bytes, files.get(id).purpose) == (5, "batch_output")


def test_a_file_expires_when_its_caller_says_so(files: Files, volume: Path) -> None:
    file = received(files, expires_after_s=3600)
    assert file.expires_at == file.created_at + 3600
    for_ever, half = (Files(Volume(volume), max_mb=1, retention_days=days) for days in (0.0, 0.5))
    assert received(for_ever).expires_at is None
    assert received(for_ever, expires_after_s=3600).expires_at is not None
    file = received(half)
    assert file.expires_at == file.created_at + DAY_S // 2


def test_the_largest_file_is_received_and_no_larger_one(files: Files, stored_files: Path) -> None:
    assert received(files, bytes(1_000_000)).bytes == 1_000_000
    before = contents(stored_files)
    parts = iter([bytes(400_000)] * 100)
    with pytest.raises(InputTooLarge, match=r"1,000,000 bytes \(FILES_MAX_MB\)"):
        files.receive(parts, filename="large")
    # No more is read than is refused.
    assert len(list(parts)) == 97
    assert contents(stored_files) == before


@pytest.mark.parametrize("path", ["inbox/a.jsonl", "s3://bucket/inbox/a.jsonl"])
def test_a_file_on_the_volume_is_named_and_stays(files: Files, volume: Path, path: str) -> None:
    own = volume / "inbox" / "a.jsonl"
    own.write_bytes(b"own")
    file = files.refer(path, purpose="batch", filename="shown.jsonl")
    assert (file.bytes, file.filename) == (3, "shown.jsonl")
    assert files.content(files.get(file.id)) == own
    files.delete(file.id)
    assert own.read_bytes() == b"own"


@pytest.mark.parametrize(
    "path", ["inbox/directory", "inbox/missing.jsonl", "../out", "worker/files", "/etc/passwd"]
)
def test_a_path_that_is_no_file_is_refused(
    files: Files, volume: Path, stored_files: Path, path: str
) -> None:
    (volume / "inbox" / "directory").mkdir()
    with pytest.raises(InvalidInput):
        files.refer(path, purpose="batch")
    assert not stored_files.exists()


def test_a_link_laid_later_is_not_followed_out_of_the_volume(files: Files, volume: Path) -> None:
    own = volume / "inbox" / "a.jsonl"
    own.write_bytes(b"own")
    file = files.refer("inbox/a.jsonl", purpose="batch")
    own.unlink()
    with pytest.raises(NoSuchObject, match="no longer"):
        files.content(file)
    own.symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        files.content(file)


@pytest.mark.parametrize(
    "id", ["", "file-", "file-x", "../../etc", "file-" + "a" * 24, "file-" + "/" * 24, "file-\0"]
)
def test_what_is_no_id_of_a_file_is_not_found(files: Files, id: str) -> None:
    received(files)
    for act in (files.get, files.delete):
        with pytest.raises(NoSuchObject) as refused:
            act(id)
        assert refused.value.status == 404


def test_a_file_that_expired_is_not_found(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    file = received(files, expires_after_s=3600)
    monkeypatch.setattr(time, "time", lambda: file.created_at + 3599)
    assert files.get(file.id) == file
    monkeypatch.setattr(time, "time", lambda: file.created_at + 3600)
    with pytest.raises(NoSuchObject):
        files.get(file.id)
    assert files.list().data == ()
    # A batch that began before goes on with it.
    assert files.get(file.id, expired=True) == file


def test_files_are_listed_by_purpose_once_they_are_whole(files: Files, stored_files: Path) -> None:
    assert files.list().data == ()
    batch, other, broken = received(files, purpose="batch"), received(files), received(files)
    (stored_files / ids.new(PREFIX)).mkdir()
    (stored_files / broken.id / "meta.json").write_text(json.dumps({"id": broken.id}))
    with pytest.raises(NoSuchObject):
        files.get(broken.id)
    assert {file.id for file in files.list().data} == {batch.id, other.id}
    assert files.list(purpose="batch").data == (batch,)
    assert files.list(purpose="vision").data == ()


def test_a_deleted_file_is_gone_and_one_in_use_stays(files: Files, stored_files: Path) -> None:
    file = received(files)
    with pytest.raises(Conflict, match="a fine-tune that has not ended"):
        files.delete(file.id, in_use={file.id})
    assert files.get(file.id) == file
    files.delete(file.id)
    with pytest.raises(NoSuchObject):
        files.delete(file.id)
    assert contents(stored_files) == []


def test_expired_files_are_removed_unless_they_are_in_use(
    files: Files, volume: Path, stored_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = volume / "inbox" / "own.jsonl"
    own.write_bytes(b"own")
    received(files, expires_after_s=3600)
    files.refer("inbox/own.jsonl", purpose="batch", expires_after_s=3600)
    used, lasting = received(files, expires_after_s=3600), received(files)
    assert files.sweep(set()) == 0
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert files.sweep({used.id}) == 2
    assert {place.name for place in stored_files.iterdir()} == {used.id, lasting.id}
    assert own.read_bytes() == b"own"


@pytest.mark.parametrize("name", [ids.new(PREFIX), ".removed.0123"])
def test_half_written_files_go_after_a_day(files: Files, stored_files: Path, name: str) -> None:
    assert files.sweep(set()) == 0
    assert not stored_files.exists()
    left = stored_files / name
    left.mkdir(parents=True)
    (left / ".content.0123").write_bytes(b"half")
    # The ages of the directory and of what is in it: if one is young, its writer is alive.
    for ages, in_use, removed in (
        ((DAY_S - 600, DAY_S - 600), set(), 0),
        ((DAY_S + 600, 0), set(), 0),
        ((DAY_S + 600, DAY_S + 600), {name}, 0),
        ((DAY_S + 600, DAY_S + 600), set(), 1),
    ):
        for place, age in zip((left, left / ".content.0123"), ages, strict=True):
            os.utime(place, (time.time() - age,) * 2)
        assert files.sweep(in_use) == removed
    assert [*stored_files.iterdir()] == []
