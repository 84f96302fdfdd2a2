"""Limits the total size of files and outputs of batches, and checks the free space of the disk."""

import os
import threading
import time
from pathlib import Path

from worker.errors import VolumeError
from worker.volume import WORKER_DIRECTORY, Volume, check_space, translate_os_errors

MEGABYTE = 1_000_000
# A measurement is valid for this many seconds, or for this multiple of its duration if longer.
VALID_S = 60.0
VALID_FACTOR = 20.0
# Before a write is refused, a measurement older than this many seconds is repeated: another worker
# may have deleted files.
RECHECK_S = 1.0
# Bytes written between two checks of the free disk space.
DISK_CHECK_BYTES = 16 * MEGABYTE


class Quota:
    """Limits the bytes of files on a volume. Its methods block on the disk, and are thread-safe.

    Workers may exceed the quota together: they count each other's bytes only when they measure.

    Args:
        volume: Volume of the files.
        max_bytes: Maximum bytes of all files and outputs together.
    """

    def __init__(self, volume: Volume, max_bytes: int) -> None:
        root = volume.root
        self._directories = (root / WORKER_DIRECTORY / "files", root / volume.output_directory)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._total = 0
        self._unchecked = 0
        self._measured_at = self._valid_until = -1.0

    def reserve(self, count: int) -> None:
        """Count bytes that are about to be written.

        Args:
            count: Number of bytes; 0 to check that the quota and the disk are not full.

        Raises:
            VolumeError: The quota or the disk is full.
        """
        with self._lock:
            now = time.monotonic()
            needed = max(count, 1)
            is_full = self._total + needed > self._max_bytes and now > self._measured_at + RECHECK_S
            if is_full or now > self._valid_until:
                self._measure(now)
            if self._total + needed > self._max_bytes:
                raise VolumeError(
                    f"all files and outputs of batches may have {self._max_bytes // MEGABYTE:,} MB "
                    "in total (FILES_MAX_TOTAL_MB): delete some of them"
                )
            self._total += count
            self._unchecked += count
            if count == 0 or self._unchecked > DISK_CHECK_BYTES:
                check_space(self._directories[0], count)
                self._unchecked = 0

    def invalidate_measurement(self) -> None:
        """Measure again before the next write, because files were removed."""
        with self._lock:
            self._measured_at = self._valid_until = -1.0

    def _measure(self, started_at: float) -> None:
        with translate_os_errors():
            self._total = sum(map(_directory_size, self._directories))
        self._measured_at = time.monotonic()
        self._valid_until = self._measured_at + max(
            VALID_S, VALID_FACTOR * (self._measured_at - started_at)
        )


def _directory_size(directory: Path) -> int:
    """Return the total bytes of all readable files below a directory."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(f"{folder}/{name}").st_size
            except FileNotFoundError:
                # The file has just been removed.
                continue
    return size
