"""An S3 server in place of the platform's; it serves a directory in place of a volume."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.processes.s3_server import VOLUME_ID, S3Server, s3_server

from llm_worker_client.volume import Volume, s3

PART = 2**19


@dataclass(frozen=True)
class Mount:
    """A volume: its S3 API, and its directory as mounted in a worker."""

    server: S3Server
    directory: Path

    def open(self, **options: Any) -> Volume:
        keys = {"access_key": self.server.access_key, "secret": self.server.secret_key}
        defaults = {"id": VOLUME_ID, "url": self.server.url, "part_size": PART, **keys}
        return Volume(**{**defaults, **options})

    def read(self, key: str) -> bytes:
        return (self.directory / key).read_bytes()


@pytest.fixture(scope="session")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    folder = tmp_path_factory.mktemp("volume")
    with s3_server(folder, folder.with_name("s3-log")) as server:
        yield Mount(server, folder)


@pytest.fixture
def remote(mount: Mount) -> Iterator[Volume]:
    with mount.open() as volume:
        yield volume


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of several parts, of which the last is shorter."""
    return random_file(tmp_path / "rows.jsonl", 4 * PART + 12_345)


@pytest.fixture
def _set_volume_environ(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables of the volume."""
    for name, value in mount.server.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def _shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRY_PAUSES_S", [0.01] * len(s3.RETRY_PAUSES_S))
    monkeypatch.setattr(s3, "INITIAL_RETRY_PAUSES_S", [0.01] * len(s3.INITIAL_RETRY_PAUSES_S))


def random_file(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path
