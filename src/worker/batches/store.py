"""All batches of a volume, with their input files and outputs."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from worker.batches.finish import (
    ExtraOutput,
    OutputFactory,
    fail_batch,
    find_unchanged_input,
    finish_batch,
)
from worker.batches.lines import BatchLimits, BatchPlan
from worker.batches.record import Batch, BatchResult, EndStatus, StoredBatch
from worker.files import Files
from worker.long_work.records import Records
from worker.settings import Settings


class Batches(Records[Batch, StoredBatch]):
    """All batches of a volume. Its methods read and write files: call them in threads.

    Args:
        settings: Settings of the worker.
        factories: Factories of additional outputs, by the names in ``StoredBatch.output``.
        files: Files of the volume; None for new objects, which know less about the used space.
    """

    record_type = Batch
    id_prefix: ClassVar[str] = "batch_"
    folder: ClassVar[str] = "batches"
    id_param: ClassVar[str] = "batch_id"
    input_purpose: ClassVar[str] = "batch"

    def __init__(
        self,
        settings: Settings,
        factories: Mapping[str, OutputFactory] = MappingProxyType({}),
        files: Files | None = None,
    ) -> None:
        super().__init__(settings, files)
        max_bytes = round(settings.max_input_mb * 1_000_000)
        self.limits = BatchLimits(settings.batch_max_requests, max_bytes)
        self._factories = factories

    def end(self, batch: Batch, status: EndStatus) -> BatchResult:
        """End a batch; see ``finish_batch``."""
        output = self._make_extra_output(batch.request)
        return finish_batch(batch, status, self.files, output, self.limits.max_line_bytes)

    def fail(self, batch: Batch, mistakes: list[dict[str, Any]]) -> None:
        """End a batch as failed before any of its lines was processed."""
        fail_batch(batch, mistakes, self._make_extra_output(batch.request))

    def find_unchanged_input(self, batch: Batch, plan: BatchPlan) -> Path | None:
        """Find the input of a batch; None if it was changed or removed after it was planned."""
        return find_unchanged_input(self.files, batch, plan)

    def _make_extra_output(self, request: StoredBatch) -> ExtraOutput | None:
        if request.output is None:
            return None
        return self._factories[request.output](request, self.files)
