"""Fixtures for the tests of files: a temporary volume and its files."""

from pathlib import Path

import pytest
from support.volume import make_files

from worker.files import Files
from worker.volume import Volume


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    (root / "inbox").mkdir(parents=True)
    return root


@pytest.fixture
def files(volume: Path) -> Files:
    return make_files(Volume(volume, bucket="bucket"))


@pytest.fixture
def stored_files(volume: Path) -> Path:
    """Return the directory of uploaded files."""
    return volume / "worker" / "files"
