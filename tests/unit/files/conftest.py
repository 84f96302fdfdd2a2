"""A volume in a directory of the test's own."""

from pathlib import Path

import pytest

from worker.files import Files
from worker.volume import Volume

MAX_MB = 1


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    root = tmp_path / "volume"
    (root / "inbox").mkdir(parents=True)
    return Volume(root, bucket="bucket")


@pytest.fixture
def files(volume: Volume) -> Files:
    return Files(volume, max_mb=MAX_MB, retention_days=30)


@pytest.fixture
def kept(volume: Volume) -> Path:
    """Return the directory that files are kept in."""
    return volume.root / "worker" / "files"
