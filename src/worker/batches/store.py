"""All batches of a volume, and what they read and write there."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from worker.batches.finish import MakeOutput, Output, fail, finish, input_of
from worker.batches.lines import Limits, Plan
from worker.batches.record import Batch, BatchResult, End, StoredBatch
from worker.long_work.records import Records
from worker.settings import Settings


class Batches(Records[Batch, StoredBatch]):
    """All batches of a volume. Its methods read and write files: call them in threads.

    Args:
        settings: the worker's.
        outputs: what batches can write beside their files of results, by the names in requests.
    """

    record = Batch
    prefix: ClassVar[str] = "batch_"
    folder: ClassVar[str] = "batches"
    param: ClassVar[str] = "batch_id"
    purpose: ClassVar[str] = "batch"

    def __init__(
        self, settings: Settings, outputs: Mapping[str, MakeOutput] = MappingProxyType({})
    ) -> None:
        super().__init__(settings)
        longest = round(settings.max_input_mb * 1_000_000)
        # Of an input.
        self.limits = Limits(settings.batch_max_requests, longest, settings.max_input_values)
        self._outputs = outputs

    def end(self, one: Batch, how: End) -> BatchResult:
        """End a batch; see ``finish``."""
        output = self._output_of(one.request)
        return finish(one, how, self.files, output, self.limits.bytes_of_a_line)

    def fail(self, batch: Batch, mistakes: list[dict[str, Any]]) -> None:
        """End a batch of which no line has begun."""
        fail(batch, mistakes, self._output_of(batch.request))

    def input_of(self, batch: Batch, plan: Plan) -> Path | None:
        """Find a batch's input; None: it is no more the one that was planned."""
        return input_of(self.files, batch, plan)

    def _output_of(self, request: StoredBatch) -> Output | None:
        """Return what a batch writes beside its files of results; None: nothing."""
        if request.output is None:
            return None
        return self._outputs[request.output](request, self.files)
