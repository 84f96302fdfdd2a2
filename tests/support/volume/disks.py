"""Disks with a size limit, full disks and read-only disks; nothing else stops root from writing.

Only root may mount them. Without root these tests are skipped. If root is expected to run the
tests, as in CI, REQUIRE_ROOT=1 in the environment makes them fail instead.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


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
    """Make a disk read-only ("ro") or writable ("rw")."""
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)
