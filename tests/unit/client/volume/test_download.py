"""How a file is read whose bytes do not come as they should: answers that no server gives so."""

import dataclasses
import hashlib
import io
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from unit.client.volume.conftest import PART, random_file

from llm_worker_client.volume import Changed, Damaged, Volume, VolumeError
from llm_worker_client.volume.download import download
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import S3, Stored

CONTENT = b"0123456789"
ETAG = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
FILE = Stored("a", len(CONTENT), ETAG, datetime.now(UTC))

Receive = Callable[..., bytes]


class Body(io.BytesIO):
    """Bytes of an answer, and what happens behind them."""

    def __init__(self, content: bytes, then: Callable[[], object] = lambda: None) -> None:
        super().__init__(content)
        self._then = then

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        if not block:
            self._then()
        return block


def lost() -> None:
    raise ReadTimeoutError(endpoint_url="http://s3")


class Answers(S3):
    """Gives one answer after the other: the offset that it begins at, and its body."""

    def __init__(self, *answers: tuple[int, io.BytesIO], etag: str = ETAG) -> None:
        # Without clients of S3, which take long to make.
        self._answers = list(answers)
        self._etag = etag
        self.offsets: list[int] = []

    def read(self, file: Stored, offset: int) -> Any:
        self.offsets.append(offset)
        begin, body = self._answers.pop(0)
        return {"Body": body, "ETag": f'"{self._etag}"', "ContentRange": f"bytes {begin}-9/10"}


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def receive(tmp_path: Path) -> Receive:
    """Return what reads a file: it returns the file's bytes."""

    def call(s3: S3, file: Stored = FILE) -> bytes:
        with s3.transfer(), Progress(file.size, "a", visible=False) as progress:
            download(s3, file, tmp_path / "a", progress, PART)
        return (tmp_path / "a").read_bytes()

    return call


def test_what_breaks_off_is_asked_for_from_there(receive: Receive) -> None:
    answers = Answers((0, Body(b"0123", lost)), (4, Body(b"", lost)), (4, Body(b"456789")))
    assert receive(answers) == CONTENT
    assert answers.offsets == [0, 4, 4]


def test_a_server_that_begins_anew_is_followed(receive: Receive) -> None:
    answers = Answers((0, Body(b"0123", lost)), (0, Body(CONTENT)))
    assert receive(answers) == CONTENT
    assert answers.offsets == [0, 4]


@pytest.mark.parametrize(("content", "begin"), [(CONTENT, 4), (CONTENT[::-1], 0)])
def test_an_interrupted_transfer_goes_on_unless_the_content_is_another(
    receive: Receive, tmp_path: Path, content: bytes, begin: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        receive(Answers((0, Body(b"0123", interrupted))))
    (part,) = tmp_path.iterdir()
    assert part.read_bytes() == b"0123"
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    answers = Answers((begin, Body(content[begin:])), etag=etag)
    assert receive(answers, dataclasses.replace(FILE, etag=etag)) == content
    assert answers.offsets == [begin]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("contents", "etag", "error", "left"),
    [
        ([b"0123", b""], ETAG, Damaged, 1),
        ([b"012345678x"], ETAG, Damaged, 0),
        ([CONTENT], "another", Changed, 1),
    ],
    ids=["fewer bytes", "other bytes", "another file"],
)
def test_a_file_that_is_not_what_it_was_is_an_error(
    receive: Receive,
    tmp_path: Path,
    contents: list[bytes],
    etag: str,
    error: type[VolumeError],
    left: int,
) -> None:
    with pytest.raises(error):
        receive(Answers(*[(4 * n, Body(one)) for n, one in enumerate(contents)], etag=etag))
    assert not (tmp_path / "a").exists()
    assert len(list(tmp_path.iterdir())) == left


def test_a_changed_file_is_not_read_on(remote: Volume, tmp_path: Path) -> None:
    remote.upload(random_file(tmp_path / "a", PART), "mixed/a")
    (file,) = remote.list("mixed/a")
    remote.upload(random_file(tmp_path / "a", PART), "mixed/a")
    s3 = remote._s3
    with pytest.raises(Changed, match="has changed meanwhile"), s3.transfer():
        s3.read(file, 1)
