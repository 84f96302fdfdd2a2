"""Files of tests."""

from worker.files import Files
from worker.files.quota import MEGABYTE, Quota
from worker.volume import Volume


def make_quota(volume: Volume, max_bytes: int = 1_000 * MEGABYTE, max_files: int = 1_000) -> Quota:
    """Return a quota that no test reaches by accident."""
    return Quota(volume, volume.root / "adapters", max_bytes, max_files)


def make_files(volume: Volume, max_mb: int = 1, retention_days: float = 30) -> Files:
    quota = make_quota(volume)
    return Files(volume, max_mb=max_mb, retention_days=retention_days, quota=quota)
