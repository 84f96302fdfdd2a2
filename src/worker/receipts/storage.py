"""Stores receipts on the volume: ``worker/receipts/<day>/<worker>.jsonl``."""

import contextlib
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from worker.errors import VolumeError
from worker.json_lines import encode_line
from worker.process.exits import call_at_exit
from worker.settings import Settings
from worker.volume import Volume, check_space, translate_os_errors
from worker.volume.durable import make_directory, sync_directory, write_durably

log = logging.getLogger(__name__)

DIRECTORY = "receipts"
# Seconds in which receipts collect before they are written together.
GROUP_S = 1.0
# Maximum bytes of the receipts that wait for a volume that fails, usually some 50,000. The oldest
# ones are dropped.
MAX_PENDING_BYTES = 32 * 2**20
DAY_S = 86_400

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class ReceiptFile:
    """Appends receipts to a file for each day, which no other worker writes to. Thread-safe.

    A thread writes the receipts of a second together. If the volume fails, they wait for the next
    second, and go to a new file: a partly written line may be the last one of a file only.
    """

    def __init__(self, volume: Volume, worker_id: str) -> None:
        self._volume = volume
        self._worker_id = _NOT_IN_NAMES.sub("-", worker_id)[:64]
        # A thread releases this lock soon, since event loops wait for it.
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._pending_lock = threading.Lock()
        self._has_pending = threading.Event()
        self._write_lock = threading.Lock()
        self._path: Path | None = None
        self._has_failed = False
        # Number of receipts that were dropped while the volume failed.
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def add(self, receipt: dict[str, Any]) -> None:
        """Let a receipt be written within about a second."""
        self._pend([encode_line(receipt) + b"\n"])
        if self._thread is None:
            # Not before: a process that has threads must not be forked.
            self._thread = threading.Thread(target=self._run, name="receipts", daemon=True)
            self._thread.start()
            call_at_exit(self._write_pending)
        self._has_pending.set()

    def _run(self) -> None:
        while self._has_pending.wait():
            time.sleep(GROUP_S)
            self._has_pending.clear()
            self._write_pending()

    def _pend(self, lines: Sequence[bytes], *, first: bool = False) -> None:
        """Let lines wait, behind the others or before them; drop the oldest of too many bytes."""
        with self._pending_lock:
            if first:
                self._pending.extendleft(reversed(lines))
            else:
                self._pending.extend(lines)
            self._pending_bytes += sum(map(len, lines))
            while self._pending_bytes > MAX_PENDING_BYTES:
                self._pending_bytes -= len(self._pending.popleft())
                self._dropped += 1

    def _write_pending(self) -> None:
        with self._write_lock:
            with self._pending_lock:
                lines, self._pending, self._pending_bytes = self._pending, deque(), 0
            if not lines:
                return
            try:
                self._append(b"".join(lines))
            except VolumeError as error:
                self._pend(lines, first=True)
                self._has_pending.set()
                self._path = None
                if not self._has_failed:
                    log.warning("receipts could not be written to the volume, and wait: %s", error)
                self._has_failed = True
            else:
                if self._dropped:
                    log.error("%d receipts are lost: too many waited for the volume", self._dropped)
                self._has_failed, self._dropped = False, 0

    def _append(self, lines: bytes) -> None:
        """Append lines to the file of the current day (UTC), and make them durable.

        Raises:
            VolumeError: There is no volume, or it fails.
        """
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        with translate_os_errors():
            if self._path is None or self._path.parent.name != day:
                name = f"{self._worker_id}-{uuid.uuid4().hex[:8]}.jsonl"
                self._path = self._volume.worker_path(DIRECTORY) / day / name
                make_directory(self._path.parent)
            check_space(self._path.parent, len(lines))
            with self._path.open("ab", 0) as file:
                begin = file.tell()
                try:
                    write_durably(file, lines)
                except OSError:
                    with contextlib.suppress(OSError):
                        file.truncate(begin)
                    raise
            if begin == 0:
                sync_directory(self._path.parent)


def sweep_receipts(settings: Settings) -> int:
    """Remove the receipts of expired days; return the number of removed files.

    Raises:
        VolumeError: The volume fails.
    """
    days = settings.receipts_retention_days
    directory = Volume.from_settings(settings).worker_path(DIRECTORY)
    if not days or not directory.is_dir():
        return 0
    removed = 0
    with translate_os_errors():
        for path in directory.glob("*/*.jsonl"):
            if time.time() - path.stat().st_mtime > days * DAY_S:
                path.unlink()
                removed += 1
        for day in directory.iterdir():
            with contextlib.suppress(OSError):  # not empty
                day.rmdir()
    return removed
