"""Files, receipts and records on volumes, and disks that are small, full or read-only.

Only root may mount disks. Without root these tests are skipped. If root is expected to run the
tests, as in CI, REQUIRE_ROOT=1 in the environment makes them fail instead.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.processes.background import wait_until
from worker.files import FILE_PREFIX, Files
from worker.files.quota import MEGABYTE, Quota
from worker.long_work.records import Records, RecordT
from worker.volume import Volume, ids

# The id of a file that an earlier worker has left behind.
EXPIRED = ids.derive_id(FILE_PREFIX, "expired")


def make_quota(volume: Volume, max_bytes: int = 1_000 * MEGABYTE, max_files: int = 1_000) -> Quota:
    """Return a quota that no test reaches by accident."""
    return Quota(volume, volume.root / "adapters", max_bytes, max_files)


def make_files(volume: Volume, max_mb: int = 1, retention_days: float = 30) -> Files:
    quota = make_quota(volume)
    return Files(volume, max_mb=max_mb, retention_days=retention_days, quota=quota)


def read_receipts(root: Path) -> list[dict[str, Any]]:
    """Return the receipts of all days and workers, the oldest file first."""
    files = sorted(root.glob("worker/receipts/*/*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]


def all_records(records: Records[RecordT, Any]) -> list[RecordT]:
    """Return all records of one kind, oldest first."""
    page = records.list_newest(limit=1_000)
    assert not page.has_more
    return list(reversed(page.data))


def make_used_volume(root: Path) -> str:
    """Create a volume with a file that expires in a second; return its path, for FILES_PATH."""
    files = make_files(Volume(root))
    files.receive([b"old"], filename="old", expires_after_s=1, id=EXPIRED)
    return str(root)


def has_expired_file(root: Path) -> bool:
    """Return whether the expired file still exists."""
    return (root / "worker" / "files" / EXPIRED).exists()


@contextmanager
def mount_disk(place: Path, size: int) -> Iterator[Path]:
    """Mount a disk of ``size`` bytes in memory; without root, skip the test or fail it."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        give_up = pytest.fail if os.environ.get("REQUIRE_ROOT") == "1" else pytest.skip
        give_up(f"nothing can be mounted here: {done.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path, free: int = 0) -> Path:
    """Fill a disk except for ``free`` bytes; return the file that fills it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as opened, suppress(OSError):
        while shutil.disk_usage(disk).free > free:
            opened.write(bytes(4096))
    return filler


def remount(disk: Path, mode: str) -> None:
    """Make a disk read-only ("ro"), once no file on it is open for writing, or writable ("rw")."""
    command = ["mount", "-o", f"remount,{mode}", str(disk)]
    wait_until(lambda: not subprocess.run(command, capture_output=True, check=False).returncode)
