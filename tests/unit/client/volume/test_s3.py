"""Which answers of the S3 API are tried again: some that no server of S3 gives, but proxies do."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_worker_client.volume import NoSpace, Stopped, Volume, VolumeError, s3

CONTENT = b"0123456789"
TRIES = 1 + len(s3.PAUSES)


class Api(BaseHTTPRequestHandler):
    """A volume of one file, which refuses it with some statuses first."""

    protocol_version = "HTTP/1.1"
    left: list[int]
    puts: list[bytes]

    def do_GET(self) -> None:
        self._answer(200, b"<ListMultipartUploadsResult/>")

    def do_HEAD(self) -> None:
        is_there = self.path == "/v" or bool(self.puts and not self.left)
        self._answer(200 if is_there else 404)

    def do_PUT(self) -> None:
        self.puts.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.left.pop(0) if self.left else 200)

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
def volume(*refusals: int) -> Iterator[tuple[Volume, list[bytes]]]:
    """Open a volume that refuses a file with these statuses; yield the bodies of its PUTs, too."""

    class Refusing(Api):
        left, puts = [*refusals], list[bytes]()

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with Volume("v", url=url, access_key="user_a", secret="rps_a") as opened:
            yield opened, Refusing.puts
        server.shutdown()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(CONTENT)
    return tmp_path / "a"


def test_a_file_is_sent_again_whole_when_a_proxy_gives_up(small: Path) -> None:
    with volume(524, 503, 429) as (opened, puts):
        sent = opened.upload(small, "a")
    assert puts == [CONTENT] * 4
    assert (sent.size, sent.moved) == (len(CONTENT), 4 * len(CONTENT))


@pytest.mark.parametrize(
    ("status", "error", "says", "tries"),
    [
        (500, VolumeError, "answers 500", TRIES),
        (400, VolumeError, "answers 400", 1),
        (403, VolumeError, "keys are refused", 1),
        (507, NoSpace, "volume v is full", 1),
    ],
)
def test_what_stays_is_an_error(
    small: Path, status: int, error: type[VolumeError], says: str, tries: int
) -> None:
    with volume(*[status] * TRIES) as (opened, puts), pytest.raises(error, match=says):
        opened.upload(small, "a")
    assert len(puts) == tries


def test_a_transfer_that_is_given_up_is_not_tried_again(small: Path) -> None:
    stop = threading.Event()
    stop.set()
    with volume() as (opened, puts), pytest.raises(Stopped):
        opened.upload(small, "a", stop=stop)
    assert CONTENT not in puts
