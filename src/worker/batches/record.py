"""Record of a batch on the volume: its request, progress and result. Its files are its state."""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from worker.batches.lines import BatchPlan
from worker.batches.parts import FinishedLine, read_finished_lines, records_file_sizes
from worker.errors import Conflict
from worker.job.batch import BatchRequest
from worker.long_work.records import DECISION, REQUEST, RESULT, Record, StoredRequest, TimedModel
from worker.volume import ids, translate_os_errors
from worker.volume.durable import write_once

# Files and directories in the directory of a batch, in addition to those of every ``Record``.
PLAN, CANCEL = "plan.json", "cancel.json"
PARTS, DONE = "parts", "done"

# A batch fails if its input is invalid, if the input has changed since it was planned, or if its
# additional output can't be written.
EndStatus = Literal["completed", "expired", "cancelled", "failed"]
BatchStatus = Literal["validating", "in_progress", "finalizing", "cancelling"] | EndStatus


class StoredBatch(BatchRequest, StoredRequest):
    """A batch request on the volume.

    Args:
        output: Name of the batch's additional output; None if it has none.
        extra: Additional data for the dialect of the request.
        lasts_s: Seconds from the creation until the batch expires; None to use the
            request's ``completion_window``.
    """

    input_file_id: str
    output: str | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    lasts_s: int | None = None

    @property
    def expires_at(self) -> int:
        return self.created_at + (self.lasts_s or self.window_s)

    @property
    def tag(self) -> str:
        return self.output or ""

    @property
    def input_file_ids(self) -> Mapping[str, str]:
        return {"input_file_id": self.input_file_id}

    @classmethod
    def from_request(cls, request: BatchRequest, id: str, input_file_id: str) -> "StoredBatch":
        """Return a request as stored on the volume; its creation time is the current time."""
        shared = {name: getattr(request, name) for name in BatchRequest.model_fields}
        return cls(**shared, id=id, input_file_id=input_file_id)


class BatchEnding(TimedModel):
    """How a batch will end. It is decided once, so that all workers write the same files.

    Args:
        output_file_id: Id of the output file, if there will be one.
        error_file_id: Id of the error file, if there will be one.
        cut: Size in bytes of each records file at the decision, by file name. Lines that were
            added later don't count.
    """

    status: EndStatus
    output_file_id: str
    error_file_id: str
    cut: dict[str, int]


class BatchResult(TimedModel):
    """How a batch ended, or only the counts of its lines.

    Of ``total`` lines, ``completed`` have a successful response, ``failed`` have an error, and the
    others are unanswered. An empty output or error file is not written and has no id. ``mistakes``
    are OpenAI's ``errors``: the reasons why the batch failed.
    """

    status: EndStatus = "completed"
    mistakes: list[dict[str, Any]] = Field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSnapshot:
    """The state of a batch at one moment.

    Times are in seconds since 1970; None for an event that has not happened. ``planned_at`` is the
    time when the validation of the input began. The ending was decided at ``ending_at``. After the
    end, ``counts`` also has the ids of the result files.
    """

    request: StoredBatch
    status: BatchStatus
    counts: BatchResult
    planned_at: int | None
    cancelled_at: int | None
    ending_at: int | None
    ended_at: int | None
    mistakes: list[dict[str, Any]]


class Batch(Record):
    """The directory of one batch. Its methods read and write files: call them in threads."""

    kind: ClassVar[str] = "batch"
    noun: ClassVar[str] = "batch"

    @property
    def request(self) -> StoredBatch:
        return self.read_required_file(REQUEST, StoredBatch)

    @property
    def retention_start(self) -> int:
        return self.request.expires_at

    @property
    def plan(self) -> BatchPlan | None:
        return self.read_file(PLAN, BatchPlan)

    @property
    def result(self) -> BatchResult | None:
        return self.read_file(RESULT, BatchResult)

    @property
    def ending(self) -> BatchEnding | None:
        return self.read_file(DECISION, BatchEnding)

    @property
    def parts_directory(self) -> Path:
        return self.directory / PARTS

    def stop_reason(self) -> EndStatus | None:
        """Return the status that the batch ends with; None if more lines should be answered."""
        if ending := self.ending:
            return ending.status
        if self.has_file(CANCEL):
            return "cancelled"
        return "expired" if time.time() >= self.request.expires_at else None

    def mark_shard_done(self, index: int) -> None:
        with translate_os_errors():
            write_once(self.directory / DONE / str(index), b"")

    def verify_or_reopen_shards(self, plan: BatchPlan) -> bool:
        """Return whether all lines have responses; reopen shards that have lost lines."""
        with translate_os_errors():
            finished = read_finished_lines(self.parts_directory, check_texts=True)
            first_numbers = [shard.first for shard in plan.shards]
            line_counts = Counter(bisect_right(first_numbers, number) - 1 for number in finished)
            for index, shard in enumerate(plan.shards):
                if line_counts[index] < shard.count:
                    (self.directory / DONE / str(index)).unlink(missing_ok=True)
        return len(finished) >= plan.total

    def unfinished_shard_indexes(self, plan: BatchPlan) -> list[int]:
        """Return the indexes of the shards that are not marked as done."""
        return [index for index in range(len(plan.shards)) if not self.has_file(f"{DONE}/{index}")]

    def decide_ending(self, status: EndStatus) -> BatchEnding:
        """Decide how the batch ends; return the earlier decision if there is one."""
        with translate_os_errors():
            cut = records_file_sizes(self.parts_directory)
        volume_id = ids.split_volume_id(self.id)[1]
        output, errors = (ids.add_volume_id(ids.new_id("file-"), volume_id) for _ in range(2))
        ending = BatchEnding(status=status, output_file_id=output, error_file_id=errors, cut=cut)
        return self.write_or_read_file(DECISION, ending)

    def cancel(self) -> None:
        """Request that the workers stop the batch.

        Raises:
            Conflict: The batch has ended.
        """
        request = self.request
        if self.has_ended():
            status = self.snapshot().status
            raise Conflict(f"The batch {request.id!r} is {status}, and can't be cancelled.")
        self.write_file(CANCEL, TimedModel())

    def counts(self) -> BatchResult:
        """Return the counts of durable lines and of all lines; after the end, the result."""
        if (result := self.result) is not None:
            return result
        plan, ending = self.plan, self.ending
        with translate_os_errors():
            cut = ending.cut if ending else None
            lines = read_finished_lines(self.parts_directory, cut).values() if plan else []
        if ending is None and self.has_file(DECISION):
            # The ending was decided meanwhile: some of the lines may not count.
            return self.counts()
        return count_lines(lines, plan.total if plan else 0)

    def snapshot(self) -> BatchSnapshot:
        """Return the current state of the batch.

        Raises:
            NoSuchObject: The batch doesn't exist, or it has just been removed.
        """
        plan, cancel, ending = self.plan, self.read_file(CANCEL, TimedModel), self.ending
        result = self.result
        return BatchSnapshot(
            status=_batch_status(plan, cancel, ending, result),
            counts=result or self.counts(),
            planned_at=plan.made_at if plan else None,
            cancelled_at=cancel.at if cancel else None,
            ending_at=ending.at if ending else None,
            ended_at=result.at if result else None,
            mistakes=result.mistakes if result else [],
            # Last: reading the request raises an error if the batch was removed meanwhile.
            request=self.request,
        )


def _batch_status(
    plan: BatchPlan | None,
    cancel: TimedModel | None,
    ending: BatchEnding | None,
    result: BatchResult | None,
) -> BatchStatus:
    if result:
        return result.status
    if ending:
        return "cancelling" if ending.status == "cancelled" else "finalizing"
    if cancel:
        return "cancelling"
    return "in_progress" if plan else "validating"


def count_lines(lines: Iterable[FinishedLine], total: int) -> BatchResult:
    """Return a result that has only counts: of finished lines, their tokens and all lines."""
    result = BatchResult(total=total)
    for line in lines:
        result.failed += line.failed
        result.completed += not line.failed
        result.prompt_tokens += line.prompt_tokens
        result.output_tokens += line.output_tokens
    return result
