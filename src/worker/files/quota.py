"""Limits the space and the number of callers' objects on the volume; checks the free space."""

import os
import threading
import time
from pathlib import Path

from worker.errors import VolumeError
from worker.settings import Settings
from worker.volume import WORKER_DIRECTORY, Volume, check_space, translate_os_errors
from worker.volume.adapters import ORIGIN_FILE, adapters_directory

MEGABYTE = 1_000_000
# A measurement is valid for this many seconds, or for this multiple of its duration if longer.
VALID_S = 60.0
VALID_FACTOR = 20.0
# Before a write is refused, a measurement older than this many seconds is repeated, or than the
# multiple of its duration if longer: another worker may have deleted files.
RECHECK_S = 1.0
# Bytes written between two checks of the free disk space.
DISK_CHECK_BYTES = 16 * MEGABYTE
# Each file and directory counts as a multiple of this many bytes.
BLOCK_BYTES = 4_096
# Maximum adapters of fine-tunes, which every list of models contains and examines.
MAX_ADAPTERS = 1_000
# Bytes of a file in addition to its content: its directory, the metadata, its entry in the index,
# and the rest of its last block.
FILE_OVERHEAD = 4 * BLOCK_BYTES


class Quota:
    """Limits callers' objects on a volume. Its methods block on the disk, and are thread-safe.

    Files, batches, fine-tunes with their adapters, outputs and receipts count: everything that the
    worker writes for callers. Workers may exceed the quota together: they count each other's bytes
    only when they measure.

    Args:
        volume: Volume of the files.
        adapters: Directory of all adapters, of which only those of fine-tunes count.
        max_bytes: Maximum bytes of everything together.
        max_files: Maximum number of callers' files; also of batches, and of fine-tunes.
    """

    def __init__(self, volume: Volume, adapters: Path, max_bytes: int, max_files: int) -> None:
        root = volume.root
        self._directories = (root / WORKER_DIRECTORY, root / volume.output_directory)
        self._adapters = adapters
        self._max_bytes = max_bytes
        self.max_files = max_files
        self._lock = threading.Lock()
        self._total = 0
        self._files = 0
        self._trained_adapters = 0
        self._unchecked = 0
        self._recheck_at = self._valid_until = -1.0

    @classmethod
    def from_settings(cls, volume: Volume, settings: Settings) -> "Quota":
        adapters = adapters_directory(settings.base_path)
        max_bytes = settings.files_max_total_mb * MEGABYTE
        return cls(volume, adapters, max_bytes, settings.files_max_count)

    def reserve(self, count: int, *, files: int = 0) -> None:
        """Count bytes that are about to be written, and files that are about to be created.

        Raises:
            VolumeError: The quota or the disk is full, which a ``count`` of 0 checks, too.
        """
        with self._lock:
            needed = max(count, 1)
            self._measure_if_necessary(is_full=self._total + needed > self._max_bytes)
            if self._total + needed > self._max_bytes:
                raise VolumeError(
                    "files, batches, fine-tunes and their adapters may have "
                    f"{self._max_bytes // MEGABYTE:,} MB in total (FILES_MAX_TOTAL_MB): delete "
                    "some of them"
                )
            self._total += count
            self._files += files
            self._unchecked += count
            if count == 0 or files or self._unchecked > DISK_CHECK_BYTES:
                check_space(self._directories[0], count)
                self._unchecked = 0

    def check_file_count(self) -> None:
        """Raise ``VolumeError`` if there are too many files for another one of a caller."""
        with self._lock:
            self._measure_if_necessary(is_full=self._files >= self.max_files)
            if self._files >= self.max_files:
                raise too_many_error(self.max_files, "files")

    def check_adapter_count(self) -> None:
        """Raise ``VolumeError`` if there are too many adapters for those of another fine-tune."""
        with self._lock:
            self._measure_if_necessary(is_full=self._trained_adapters >= MAX_ADAPTERS)
            if self._trained_adapters >= MAX_ADAPTERS:
                raise VolumeError(
                    f"the volume has {MAX_ADAPTERS:,} adapters of fine-tunes, the maximum: delete "
                    "some of them (DELETE /v1/models/NAME)"
                )

    def release(self, count: int, *, files: int = 0) -> None:
        """Count bytes and files that were removed, or were not written after all."""
        with self._lock:
            self._total -= count
            self._files -= files

    def _measure_if_necessary(self, *, is_full: bool) -> None:
        started_at = time.monotonic()
        if started_at <= self._valid_until and not (is_full and started_at > self._recheck_at):
            return
        with translate_os_errors():
            adapters = [
                path for path in _visible_paths(self._adapters) if (path / ORIGIN_FILE).exists()
            ]
            self._total = sum(map(_directory_size, (*self._directories, *adapters)))
            self._files = len(_visible_paths(self._directories[0] / "files"))
            self._trained_adapters = len(adapters)
        ended_at = time.monotonic()
        pause = VALID_FACTOR * (ended_at - started_at)
        self._recheck_at = ended_at + max(RECHECK_S, pause)
        self._valid_until = ended_at + max(VALID_S, pause)


def too_many_error(maximum: int, noun: str) -> VolumeError:
    """Return the error for one more object than the volume may have."""
    return VolumeError(
        f"the volume has {maximum:,} {noun}, the maximum (FILES_MAX_COUNT): delete some of them, "
        "or wait until some expire"
    )


def _visible_paths(directory: Path) -> list[Path]:
    """Return the paths in a directory, which may not exist, without hidden names."""
    try:
        return [path for path in directory.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _directory_size(directory: Path) -> int:
    """Return the bytes of all files and directories below a directory, in whole blocks."""
    size = 0
    for folder, folders, names in os.walk(directory):
        size += len(folders) * BLOCK_BYTES
        for name in names:
            try:
                length = os.lstat(f"{folder}/{name}").st_size
            except FileNotFoundError:
                # The file has just been removed.
                continue
            size += max(1, -(-length // BLOCK_BYTES)) * BLOCK_BYTES
    return size
