"""Retries after responses of the S3 API, also after those that only proxies send."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_worker_client.volume import NoSpace, TransferStopped, Volume, VolumeError, s3

CONTENT = b"0123456789"
TRIES = 1 + len(s3.RETRY_PAUSES_S)


class Api(BaseHTTPRequestHandler):
    """A volume of one file that first refuses the file with some statuses."""

    protocol_version = "HTTP/1.1"
    remaining: list[int]
    puts: list[bytes]

    def do_GET(self) -> None:
        self._answer(200, b"<ListMultipartUploadsResult/>")

    def do_HEAD(self) -> None:
        exists = self.path == "/v" or bool(self.puts and not self.remaining)
        self._answer(200 if exists else 404)

    def do_PUT(self) -> None:
        self.puts.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.remaining.pop(0) if self.remaining else 200)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        is_file = self.command == "HEAD" and status == 200
        self.send_header("Content-Length", str(len(CONTENT) if is_file else len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def open_volume(*refusals: int) -> Iterator[tuple[Volume, list[bytes]]]:
    """Open a volume that refuses a file with these statuses; yield it and the bodies of PUTs."""

    class Refusing(Api):
        remaining, puts = [*refusals], list[bytes]()

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with Volume("v", url=url, access_key="user_a", secret="rps_a") as volume:
            yield volume, Refusing.puts
        server.shutdown()


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(CONTENT)
    return tmp_path / "a"


def test_a_file_is_sent_again_after_errors_of_a_proxy(small_file: Path) -> None:
    with open_volume(524, 503, 429) as (volume, puts):
        sent = volume.upload(small_file, "a")
    assert puts == [CONTENT] * 4
    assert (sent.size, sent.transferred) == (len(CONTENT), 4 * len(CONTENT))


@pytest.mark.parametrize(
    ("status", "error", "message", "tries"),
    [
        (500, VolumeError, "answers 500", TRIES),
        (400, VolumeError, "answers 400", 1),
        (403, VolumeError, "keys are refused", 1),
        (507, NoSpace, "volume v is full", 1),
    ],
)
def test_a_permanent_failure_is_an_error(
    small_file: Path, status: int, error: type[VolumeError], message: str, tries: int
) -> None:
    with open_volume(*[status] * TRIES) as (volume, puts), pytest.raises(error, match=message):
        volume.upload(small_file, "a")
    assert len(puts) == tries


def test_a_stopped_transfer_is_not_retried(small_file: Path) -> None:
    stop = threading.Event()
    stop.set()
    with open_volume() as (volume, puts), pytest.raises(TransferStopped):
        volume.upload(small_file, "a", stop=stop)
    assert CONTENT not in puts
