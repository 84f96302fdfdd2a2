"""How many bytes files and batches' outputs may have together, and whether the disk has them."""

import os
import threading
import time
from pathlib import Path

from worker.errors import VolumeError
from worker.volume import KEPT, Volume, check_space, failures

MEGABYTE = 1_000_000
# Seconds for which a measurement counts: so many, or so many times the time that it took.
VALID_S = 60.0
VALID_TIMES = 20.0
# Seconds after which it is done again before anything is refused: others may have made room.
REFUSALS_S = 1.0
# Bytes that are written between two looks at the disk.
STEP = 16 * MEGABYTE


class Quota:
    """Counts what is written to a volume. Its methods wait for the disk; any thread may call them.

    Several workers that write at the same moment may exceed it by what they write.

    Args:
        volume: where files are kept.
        most: bytes of all files and outputs together.
    """

    def __init__(self, volume: Volume, most: int) -> None:
        self._places = (volume.root / KEPT / "files", volume.root / volume.output)
        self._most = most
        self._lock = threading.Lock()
        self._total = 0
        self._unlooked = 0
        self._measured_at = self._valid_until = -1.0

    def take(self, count: int) -> None:
        """Count bytes that are about to be written.

        Args:
            count: 0: whether there is room at all.

        Raises:
            VolumeError: there is no room for them.
        """
        with self._lock:
            now = time.monotonic()
            wanted = max(count, 1)
            full = self._total + wanted > self._most and now > self._measured_at + REFUSALS_S
            if full or now > self._valid_until:
                self._measure(now)
            if self._total + wanted > self._most:
                raise VolumeError(
                    f"all files and outputs of batches may have {self._most // MEGABYTE:,} MB "
                    "together (FILES_MAX_TOTAL_MB): delete some of them"
                )
            self._total += count
            self._unlooked += count
            if count == 0 or self._unlooked > STEP:
                check_space(self._places[0], count)
                self._unlooked = 0

    def forget(self) -> None:
        """Measure again before the next bytes: something was removed."""
        with self._lock:
            self._measured_at = self._valid_until = -1.0

    def _measure(self, now: float) -> None:
        with failures():
            self._total = sum(map(_size, self._places))
        self._measured_at = time.monotonic()
        self._valid_until = self._measured_at + max(
            VALID_S, VALID_TIMES * (self._measured_at - now)
        )


def _size(directory: Path) -> int:
    """Return the bytes of all files below a directory, of what can be read of it."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(f"{folder}/{name}").st_size
            except FileNotFoundError:
                # Somebody has just removed it.
                continue
    return size
