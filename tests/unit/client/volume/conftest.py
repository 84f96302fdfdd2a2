"""A volume, and files to transfer."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.client.conftest import PART, Mount

from llm_worker_client.volume import Volume, s3


@pytest.fixture
def remote(mount: Mount) -> Iterator[Volume]:
    with mount.open() as volume:
        yield volume


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of several parts, of which the last is shorter."""
    return random_file(tmp_path / "rows.jsonl", 4 * PART + 12_345)


@pytest.fixture(autouse=True)
def _shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRY_PAUSES_S", [0.01] * len(s3.RETRY_PAUSES_S))
    monkeypatch.setattr(s3, "INITIAL_RETRY_PAUSES_S", [0.01] * len(s3.INITIAL_RETRY_PAUSES_S))


def random_file(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path
