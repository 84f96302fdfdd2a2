"""The S3 API of a volume: moto's server in a separate process, whose files are in a directory.

    python -m support.processes.s3_server <directory> [--full-after <bytes>]

Keys are checked, as on the platform. Complete objects appear in the directory, as on the volume
that a worker has mounted.
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
from support.processes.background import BackgroundProcess, start_command

VOLUME_ID = "vol0123456"
REGION = "us-east-1"
SMALLEST_PART = 64 * 1024


@dataclass(frozen=True)
class S3Server(BackgroundProcess):
    """A server that is ready."""

    @property
    def url(self) -> str:
        return self._ready_fields[0]

    @property
    def access_key(self) -> str:
        return self._ready_fields[1]

    @property
    def secret_key(self) -> str:
        return self._ready_fields[2]

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which a client finds the server."""
        return {
            "RUNPOD_VOLUME_ID": VOLUME_ID,
            "RUNPOD_VOLUME_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    @property
    def _ready_fields(self) -> list[str]:
        return self.output.split("READY ")[1].split()


@contextmanager
def s3_server(volume: Path, log: Path, *options: str) -> Iterator[S3Server]:
    """Start a server for a volume that is a directory."""
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        "PYTHONWARNINGS": "ignore",
        "S3_UPLOAD_PART_MIN_SIZE": str(SMALLEST_PART),
    }
    program = [sys.executable, "-u", "-m", "support.processes.s3_server"]
    with start_command([*program, volume, *options], environ, log) as running:
        server = S3Server(running.process, log)
        server.wait_for_output("END\n")
        yield server


class VolumeMirror:
    """A WSGI app that copies the S3 server's objects to a directory after each request.

    Args:
        app: moto's app.
        directory: The volume's directory.
        free: Free bytes on the volume; None for no limit.
    """

    def __init__(self, app: Any, directory: Path, free: int | None) -> None:
        self._app = app
        self._directory = directory
        self._free = free
        self._seen: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and self._free is not None:
            self._free -= int(environ.get("CONTENT_LENGTH") or 0)
            if self._free < 0:
                environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                start_response("507 Insufficient Storage", [("Content-Length", "0")])
                return [b""]
        answer: Iterable[bytes] = self._app(environ, start_response)
        if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE"):
            with self._lock:
                self._mirror()
        return answer

    def _mirror(self) -> None:
        objects = {name: (key.etag, key) for name, key in _bucket().keys.items()}
        for name in self._seen.keys() - objects.keys():
            (self._directory / name).unlink(missing_ok=True)
        for name, (etag, key) in objects.items():
            if self._seen.get(name) != etag:
                path = self._directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                new = path.with_name(f".{path.name}.{uuid4().hex}")
                new.write_bytes(key.value)
                new.replace(path)
        self._seen = {name: etag for name, (etag, _) in objects.items()}


def _bucket() -> Any:
    from moto.s3.models import s3_backends  # noqa: PLC0415  # only in the server's process

    return s3_backends["123456789012"]["aws"].buckets[VOLUME_ID]


def _serve(directory: Path, full_after: int | None) -> None:
    from moto.iam.models import iam_backends  # noqa: PLC0415  # only in the server's process
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415  # only in the server's process
        DomainDispatcherApplication,
        create_backend_app,
    )
    from moto.s3.models import s3_backends  # noqa: PLC0415  # only in the server's process
    from werkzeug.serving import make_server  # noqa: PLC0415  # only in the server's process

    iam = iam_backends["123456789012"]["aws"]
    iam.create_user("us-east-1", "caller")
    key = iam.create_access_key("caller")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [allowed]}
    iam.put_user_policy("caller", "all", json.dumps(policy))
    s3_backends["123456789012"]["aws"].create_bucket(VOLUME_ID, REGION)
    app = VolumeMirror(DomainDispatcherApplication(create_backend_app), directory, full_after)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    ready = (f"http://127.0.0.1:{server.port}", key.access_key_id, key.secret_access_key)
    sys.stdout.write(f"READY {' '.join(ready)} END\n")
    server.serve_forever()


if __name__ == "__main__":
    # moto reads this when it is imported.
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--full-after", type=int)
    options = parser.parse_args()
    _serve(options.directory, options.full_after)
