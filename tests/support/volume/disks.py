"""Disks of a size, full ones and read-only ones; nothing else stops root from writing.

Only root may mount them. Where it is expected to run the tests, as CI does, REQUIRE_ROOT=1 in the
environment makes those tests fail that can't mount anything; elsewhere they are skipped.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, size: int) -> Iterator[Path]:
    """Mount a disk in memory of so many bytes; without root, skip the test or fail it."""
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


def fill(disk: Path, left: int = 0) -> Path:
    """Fill a disk but for so many bytes; return the file that fills it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as opened, suppress(OSError):
        while shutil.disk_usage(disk).free > left:
            opened.write(bytes(4096))
    return filler


def remount(disk: Path, way: str) -> None:
    """Make a disk read-only ("ro"), or not ("rw")."""
    subprocess.run(["mount", "-o", f"remount,{way}", disk], check=True)
