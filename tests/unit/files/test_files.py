"""Files that are received, referred to, written, found, listed and deleted."""

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject
from worker.files import PREFIX, Files, StoredFile
from worker.volume import Volume, ids

DAY_S = 86_400


def received(files: Files, content: bytes = b"abc", **named: Any) -> StoredFile:
    return files.receive([content], filename="a.jsonl", **named)


def contents(directory: Path) -> list[str]:
    return sorted(str(place.relative_to(directory)) for place in directory.rglob("*"))


def test_a_file_is_received_and_found_again(files: Files, kept: Path) -> None:
    before = int(time.time())
    file = files.receive([b"ab", b"", b"c"], filename="../ä.jsonl", purpose="batch")
    assert ids.fits(PREFIX, file.id)
    assert (file.bytes, file.filename, file.purpose) == (3, "../ä.jsonl", "batch")
    assert before <= file.created_at <= time.time()
    assert file.expires_at == file.created_at + 30 * DAY_S
    assert files.get(file.id) == file
    assert files.content(file).read_bytes() == b"abc"
    assert contents(kept) == [file.id, f"{file.id}/content", f"{file.id}/meta.json"]


def test_files_are_for_no_other_user_of_the_machine(files: Files, kept: Path) -> None:
    received(files)
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_an_empty_file_is_a_file(files: Files) -> None:
    file = files.receive([], filename="empty")
    assert file.bytes == 0
    assert files.content(file).read_bytes() == b""


def test_callers_see_openais_object_and_no_path(files: Files, volume: Volume) -> None:
    (volume.root / "inbox" / "a.jsonl").write_bytes(b"12345")
    file = files.refer("inbox/a.jsonl", purpose="batch")
    assert file.shown() == {
        "id": file.id,
        "object": "file",
        "bytes": 5,
        "size": 5,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
    }


def test_without_a_purpose_it_is_fine_tune(files: Files) -> None:
    assert received(files).purpose == "fine-tune"


def test_a_file_expires_when_its_caller_says_so(files: Files, volume: Volume) -> None:
    file = received(files, expires_after_s=3600)
    assert file.expires_at == file.created_at + 3600
    for_ever = Files(volume, max_mb=1, retention_days=0)
    assert received(for_ever).expires_at is None
    assert received(for_ever, expires_after_s=3600).expires_at is not None
    half = received(Files(volume, max_mb=1, retention_days=0.5))
    assert half.expires_at == half.created_at + DAY_S // 2


def test_a_file_of_the_largest_size_is_received_and_a_larger_one_leaves_nothing(
    files: Files, kept: Path
) -> None:
    assert received(files, bytes(1_000_000)).bytes == 1_000_000
    before = contents(kept)
    given = []

    def source() -> Iterator[bytes]:
        for _ in range(100):
            given.append(bytes(400_000))
            yield given[-1]

    with pytest.raises(InputTooLarge, match=r"1,000,000 bytes \(FILES_MAX_MB\)"):
        files.receive(source(), filename="large")
    # No more is read than is refused.
    assert len(given) == 3
    assert contents(kept) == before


def test_what_breaks_off_leaves_nothing(files: Files, kept: Path) -> None:
    def source() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.receive(source(), filename="broken")
    assert contents(kept) == []


# What callers have put on the volume:


@pytest.mark.parametrize("path", ["inbox/a.jsonl", "s3://bucket/inbox/a.jsonl"])
def test_a_file_on_the_volume_is_referred_to_and_outlives_it(
    files: Files, volume: Volume, path: str
) -> None:
    own = volume.root / "inbox" / "a.jsonl"
    own.write_bytes(b"own")
    file = files.refer(path, purpose="batch", filename="shown.jsonl")
    assert (file.bytes, file.filename) == (3, "shown.jsonl")
    assert files.content(files.get(file.id)) == own
    files.delete(file.id)
    assert own.read_bytes() == b"own"
    with pytest.raises(NoSuchObject):
        files.get(file.id)


def test_a_path_that_is_no_file_is_refused(files: Files, volume: Volume, kept: Path) -> None:
    (volume.root / "inbox" / "directory").mkdir()
    for path in ("inbox/directory", "inbox/missing.jsonl", "../out", "worker/files", "/etc/passwd"):
        with pytest.raises(InvalidInput):
            files.refer(path, purpose="batch")
    assert not kept.exists()


def test_a_link_that_was_laid_later_is_not_followed_out_of_the_volume(
    files: Files, volume: Volume
) -> None:
    own = volume.root / "inbox" / "a.jsonl"
    own.write_bytes(b"own")
    file = files.refer("inbox/a.jsonl", purpose="batch")
    own.unlink()
    with pytest.raises(NoSuchObject, match="no longer"):
        files.content(file)
    own.symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        files.content(file)


# Finding:


@pytest.mark.parametrize(
    "id", ["", "file-", "file-x", "../../etc", "file-" + "a" * 24, "file-" + "/" * 24, "file-\0"]
)
def test_what_is_no_id_of_a_file_is_not_found(files: Files, id: str) -> None:
    received(files)
    for act in (files.get, files.delete):
        with pytest.raises(NoSuchObject) as refused:
            act(id)
        assert refused.value.status == 404


def test_a_file_that_has_expired_is_not_found(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = received(files, expires_after_s=3600)
    monkeypatch.setattr(time, "time", lambda: file.created_at + 3599)
    assert files.get(file.id) == file
    monkeypatch.setattr(time, "time", lambda: file.created_at + 3600)
    with pytest.raises(NoSuchObject):
        files.get(file.id)
    assert files.list().data == ()
    # A batch that began before goes on with it.
    assert files.get(file.id, expired=True) == file


def test_a_broken_description_is_no_file(files: Files, kept: Path) -> None:
    file = received(files)
    (kept / file.id / "meta.json").write_text(json.dumps({"id": file.id}))
    with pytest.raises(NoSuchObject):
        files.get(file.id)
    assert files.list().data == ()


def test_files_are_listed_by_purpose_without_what_is_half_written(files: Files, kept: Path) -> None:
    batch, other = received(files, purpose="batch"), received(files)
    (kept / ids.new(PREFIX)).mkdir()
    assert {file.id for file in files.list().data} == {batch.id, other.id}
    assert files.list(purpose="batch").data == (batch,)
    assert files.list(purpose="vision").data == ()


def test_without_any_files_the_list_is_empty(files: Files) -> None:
    assert files.list().shown()["data"] == []


# Deleting:


def test_a_deleted_file_is_gone(files: Files, kept: Path) -> None:
    file = received(files)
    files.delete(file.id)
    with pytest.raises(NoSuchObject):
        files.delete(file.id)
    assert contents(kept) == []


def test_a_file_in_use_is_not_deleted(files: Files) -> None:
    file = received(files)
    with pytest.raises(Conflict, match="a fine-tune that has not ended"):
        files.delete(file.id, in_use={file.id})
    assert files.get(file.id) == file


# Writing:


def test_a_file_that_is_written_exists_when_its_block_ends(files: Files) -> None:
    with files.writing(filename="out.jsonl", purpose="batch_output") as writing:
        writing.write(b"line\n")
        with pytest.raises(NoSuchObject):
            files.get(writing.id)
    assert writing.stored == files.get(writing.id)
    assert (writing.stored.bytes, writing.stored.purpose) == (5, "batch_output")
