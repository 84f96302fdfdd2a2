"""Downloads with broken or changed responses, which a test server can't produce."""

import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from unit.client.conftest import PART
from unit.client.volume.conftest import random_file

from llm_worker_client.volume import FileChanged, FileCorrupted, Volume, VolumeError
from llm_worker_client.volume import s3 as s3_module
from llm_worker_client.volume.s3 import S3Api, VolumeFile
from llm_worker_client.volume.transfers import Progress, download, read_block

CONTENT = b"0123456789"
ETAG = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
FILE = VolumeFile("a", len(CONTENT), ETAG, datetime.now(UTC))

Receive = Callable[..., bytes]
Scripted = Callable[..., S3Api]


class Body(io.BytesIO):
    """The body of a response; reading beyond its end calls ``then``."""

    def __init__(self, content: bytes, then: Callable[[], object] = lambda: None) -> None:
        super().__init__(content)
        self._then = then

    def read(self, size: int | None = -1, /) -> bytes:
        block = super().read(size)
        if not block:
            self._then()
        return block


def break_off() -> None:
    raise ReadTimeoutError(endpoint_url="http://s3")


class ScriptedS3(S3Api):
    """Returns scripted responses in order; each has a start offset and a body."""

    def __init__(self, *responses: tuple[int, io.BytesIO], etag: str = ETAG) -> None:
        # Skip the clients of S3, which are slow to create.
        self._responses = list(responses)
        self._etag = etag
        self.offsets: list[int] = []

    def request_file_from_offset(self, file: VolumeFile, offset: int) -> Any:
        self.offsets.append(offset)
        begin, body = self._responses.pop(0)
        return {"Body": body, "ETag": f'"{self._etag}"', "ContentRange": f"bytes {begin}-9/10"}

    def request_block(self, file: VolumeFile, offset: int, size: int) -> Any:
        self.offsets.append(offset)
        begin, body = self._responses.pop(0)
        span = {"ContentRange": f"bytes {begin}-{offset + size - 1}/10"} if begin else {}
        return {"Body": body} | span


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def receive(tmp_path: Path) -> Receive:
    """Return a function that downloads a file and returns its bytes."""

    def call(s3: S3Api, file: VolumeFile = FILE) -> bytes:
        with s3.stoppable_transfer(), Progress(file.size, "a", visible=False) as progress:
            download(s3, file, tmp_path / "a", progress, PART)
        return (tmp_path / "a").read_bytes()

    return call


@pytest.fixture
def make_s3() -> Iterator[Scripted]:
    """Return a function that makes a scripted S3 API, within a transfer."""
    with ExitStack() as stack:

        def call(*responses: tuple[int, io.BytesIO]) -> ScriptedS3:
            s3 = ScriptedS3(*responses)
            stack.enter_context(s3.stoppable_transfer())
            return s3

        yield call


def test_a_download_resumes_where_it_broke_off(receive: Receive) -> None:
    responses = ScriptedS3(
        (0, Body(b"0123", break_off)), (4, Body(b"", break_off)), (4, Body(b"456789"))
    )
    assert receive(responses) == CONTENT
    assert responses.offsets == [0, 4, 4]


def test_a_download_starts_over_if_the_server_ignores_the_offset(receive: Receive) -> None:
    responses = ScriptedS3((0, Body(b"0123", break_off)), (0, Body(CONTENT)))
    assert receive(responses) == CONTENT
    assert responses.offsets == [0, 4]


def test_a_block_is_read_again_if_its_connection_breaks(make_s3: Scripted) -> None:
    s3 = make_s3((4, Body(b"", break_off)), (4, Body(b"4567")))
    assert read_block(s3, FILE, 4, 4) == b"4567"
    broken = [(4, Body(b"", break_off)) for _ in range(1 + len(s3_module.RETRY_PAUSES_S))]
    with pytest.raises(ReadTimeoutError):
        read_block(make_s3(*broken), FILE, 4, 4)


def test_a_block_is_cut_from_the_whole_file_if_the_server_sends_it(make_s3: Scripted) -> None:
    assert read_block(make_s3((0, Body(CONTENT))), FILE, 4, 4) == b"4567"


def test_a_file_that_grows_is_read_up_to_its_listed_size(remote: Volume, tmp_path: Path) -> None:
    content = random_file(tmp_path / "a", 2 * PART + 5).read_bytes()
    remote.upload(tmp_path / "a", "growing/a")
    (file,) = remote.list("growing/")
    (tmp_path / "a").write_bytes(content + b"more")
    remote.upload(tmp_path / "a", "growing/a")
    assert [len(block) for block in remote.read(file)] == [PART, PART, 5]
    assert b"".join(remote.read(file)) == content


@pytest.mark.parametrize(("content", "begin"), [(CONTENT, 4), (CONTENT[::-1], 0)])
def test_an_interrupted_download_resumes_unless_the_content_has_changed(
    receive: Receive, tmp_path: Path, content: bytes, begin: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        receive(ScriptedS3((0, Body(b"0123", interrupt))))
    (part,) = tmp_path.iterdir()
    assert part.read_bytes() == b"0123"
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    responses = ScriptedS3((begin, Body(content[begin:])), etag=etag)
    assert receive(responses, dataclasses.replace(FILE, etag=etag)) == content
    assert responses.offsets == [begin]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("contents", "etag", "error", "remaining_files"),
    [
        ([b"0123", b""], ETAG, FileCorrupted, 1),
        ([b"012345678x"], ETAG, FileCorrupted, 0),
        ([CONTENT], "another", FileChanged, 1),
    ],
    ids=["fewer bytes", "other bytes", "another file"],
)
def test_a_changed_or_corrupted_file_is_an_error(
    receive: Receive,
    tmp_path: Path,
    contents: list[bytes],
    etag: str,
    error: type[VolumeError],
    remaining_files: int,
) -> None:
    with pytest.raises(error):
        receive(ScriptedS3(*[(4 * n, Body(one)) for n, one in enumerate(contents)], etag=etag))
    assert not (tmp_path / "a").exists()
    assert len(list(tmp_path.iterdir())) == remaining_files


def test_a_changed_file_is_not_read_further(remote: Volume, tmp_path: Path) -> None:
    remote.upload(random_file(tmp_path / "a", PART), "mixed/a")
    (file,) = remote.list("mixed/a")
    remote.upload(random_file(tmp_path / "a", PART), "mixed/a")
    s3 = remote._s3
    with pytest.raises(FileChanged, match="has changed meanwhile"), s3.stoppable_transfer():
        s3.request_file_from_offset(file, 1)
