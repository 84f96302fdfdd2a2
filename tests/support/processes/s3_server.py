"""The S3 API of a volume: moto's server in a process of its own, whose files lie in a directory.

    python -m support.processes.s3_server <directory> [--full-after <bytes>]

Keys are checked, as the platform's are. What is complete appears in the directory, as on the
volume that a worker has mounted.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from support import ROOT
from support.processes.background import Background, background

VOLUME_ID = "vol0123456"
REGION = "us-east-1"
SMALLEST_PART = 64 * 1024


@dataclass(frozen=True)
class S3Server(Background):
    """A server that is ready."""

    @property
    def url(self) -> str:
        return self._ready[0]

    @property
    def access_key(self) -> str:
        return self._ready[1]

    @property
    def secret(self) -> str:
        return self._ready[2]

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables that name it to the client."""
        return {
            "RUNPOD_VOLUME_ID": VOLUME_ID,
            "RUNPOD_VOLUME_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    @property
    def _ready(self) -> list[str]:
        return self.output.split("READY ")[1].split()


@contextmanager
def s3_server(volume: Path, log: Path, *options: str) -> Iterator[S3Server]:
    """Start a server of a volume that is a directory."""
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        "PYTHONWARNINGS": "ignore",
        "S3_UPLOAD_PART_MIN_SIZE": str(SMALLEST_PART),
    }
    program = [sys.executable, "-u", "-m", "support.processes.s3_server"]
    with background([*program, volume, *options], environ, log) as running:
        server = S3Server(running.process, log)
        server.wait_for_output("END\n")
        yield server


class Mounted:
    """A WSGI app that writes to a directory what the S3 server has when a request has ended.

    Args:
        app: moto's.
        directory: the volume's.
        left: bytes that the volume still takes; None: there is no bound.
    """

    def __init__(self, app: Any, directory: Path, left: int | None) -> None:
        self._app = app
        self._directory = directory
        self._left = left
        self._seen: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and self._left is not None:
            self._left -= int(environ.get("CONTENT_LENGTH") or 0)
            if self._left < 0:
                environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                start_response("507 Insufficient Storage", [("Content-Length", "0")])
                return [b""]
        answer: Iterable[bytes] = self._app(environ, start_response)
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
            with self._lock:
                self._mirror()
        return answer

    def _mirror(self) -> None:
        found = {name: (key.etag, key) for name, key in _bucket().keys.items()}
        for name in self._seen.keys() - found.keys():
            (self._directory / name).unlink(missing_ok=True)
        for name, (etag, key) in found.items():
            if self._seen.get(name) != etag:
                place = self._directory / name
                place.parent.mkdir(parents=True, exist_ok=True)
                new = place.with_name(f".{place.name}.{uuid4().hex}")
                new.write_bytes(key.value)
                new.replace(place)
        self._seen = {name: etag for name, (etag, _) in found.items()}


def _bucket() -> Any:
    from moto.s3.models import s3_backends  # noqa: PLC0415  # only in the server's process

    return s3_backends["123456789012"]["aws"].buckets[VOLUME_ID]


def _serve(directory: Path, full_after: int | None) -> None:
    from moto.iam.models import iam_backends  # noqa: PLC0415  # only in the server's process
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415  # likewise
        DomainDispatcherApplication,
        create_backend_app,
    )
    from moto.s3.models import s3_backends  # noqa: PLC0415  # likewise
    from werkzeug.serving import make_server  # noqa: PLC0415  # likewise

    iam = iam_backends["123456789012"]["aws"]
    iam.create_user("us-east-1", "caller")
    key = iam.create_access_key("caller")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [allowed]}
    iam.put_user_policy("caller", "all", json.dumps(policy))
    s3_backends["123456789012"]["aws"].create_bucket(VOLUME_ID, REGION)
    app = Mounted(DomainDispatcherApplication(create_backend_app), directory, full_after)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    ready = (f"http://127.0.0.1:{server.port}", key.access_key_id, key.secret_access_key)
    sys.stdout.write(f"READY {' '.join(ready)} END\n")
    server.serve_forever()


if __name__ == "__main__":
    # Before moto is imported, which reads it.
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--full-after", type=int)
    options = parser.parse_args()
    _serve(options.directory, options.full_after)
