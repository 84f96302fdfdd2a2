"""Volumes in directories, as an earlier worker has left them."""

from pathlib import Path

from worker.files import PREFIX, Files
from worker.volume import Volume, ids

EXPIRED = ids.derived(PREFIX, "expired")


def used_before(root: Path) -> str:
    """Make a volume on which a file expires in a second; return its path, for FILES_PATH."""
    files = Files(Volume(root), max_mb=1, retention_days=1)
    files.receive([b"old"], filename="old", expires_after_s=1, id=EXPIRED)
    return str(root)


def has_expired_file(root: Path) -> bool:
    """Return whether the file that has expired is still there."""
    return (root / "worker" / "files" / EXPIRED).exists()
