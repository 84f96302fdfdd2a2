"""Volumes with an expired file that an earlier worker has left behind."""

from pathlib import Path

from support.volume.files import make_files
from worker.files import FILE_PREFIX
from worker.volume import Volume, ids

EXPIRED = ids.derive_id(FILE_PREFIX, "expired")


def make_used_volume(root: Path) -> str:
    """Create a volume with a file that expires in a second; return its path, for FILES_PATH."""
    files = make_files(Volume(root))
    files.receive([b"old"], filename="old", expires_after_s=1, id=EXPIRED)
    return str(root)


def has_expired_file(root: Path) -> bool:
    """Return whether the expired file still exists."""
    return (root / "worker" / "files" / EXPIRED).exists()
