"""Batches on the volume: their requests, progress and results. Their files are their state."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field

from worker.batches.lines import (
    INPUT_CHANGED,
    WORKERS_DIED,
    BatchLimits,
    BatchPlan,
    InvalidLine,
    make_mistake,
    parse_request,
    read_lines,
)
from worker.batches.parts import (
    FinishedLine,
    LineCounts,
    count_finished_lines,
    encode_result_line,
    open_results,
    part_sizes,
    read_finished_lines,
)
from worker.errors import Conflict, NoSuchObject, OnOtherVolume, RequestError
from worker.files import Files
from worker.job.batch import BatchRequest
from worker.long_work.records import (
    DECISION,
    REQUEST,
    RESULT,
    Record,
    Records,
    StoredRequest,
    TimedModel,
)
from worker.settings import Settings
from worker.volume import ids, translate_os_errors

# Files and directories in the directory of a batch, in addition to those of every ``Record``.
PLAN, CANCEL = "plan.json", "cancel.json"
PARTS = "parts"

# A batch fails if its input is invalid, if the input has changed since it was planned, or if its
# additional output can't be written.
EndStatus = Literal["completed", "expired", "cancelled", "failed"]
BatchStatus = Literal["validating", "in_progress", "finalizing", "cancelling"] | EndStatus
# Error code and message of unanswered lines, by the status of the batch.
UNANSWERED_ERRORS = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this line was answered."),
    "expired": ("batch_expired", "The batch expired before this line was answered."),
    "completed": ("answer_lost", "The volume has lost the answer of this line."),
}


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
        cut: Size in bytes of each part at the decision, by file name. Lines that were added later
            don't count.
    """

    status: EndStatus
    output_file_id: str
    error_file_id: str
    cut: dict[str, int]


class BatchResult(TimedModel):
    """How a batch has ended.

    An empty output or error file is not written and has no id. ``mistakes`` are OpenAI's
    ``errors``: the reasons why the batch failed.
    """

    status: EndStatus
    mistakes: list[dict[str, Any]] = Field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None
    counts: LineCounts = LineCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSnapshot:
    """The state of a batch at one moment.

    Times are in seconds since 1970; None for an event that has not happened. ``planned_at`` is the
    time when the validation of the input began. The ending was decided at ``ending_at``.
    """

    request: StoredBatch
    status: BatchStatus
    total: int
    counts: LineCounts
    planned_at: int | None
    cancelled_at: int | None
    ending_at: int | None
    ended_at: int | None
    output_file_id: str | None
    error_file_id: str | None
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

    def unfinished_shard_indexes(self, plan: BatchPlan) -> list[int]:
        """Return the indexes of the shards with lines that have no durable result."""
        with translate_os_errors():
            counts = count_finished_lines(self.parts_directory)
        return [
            index
            for index, shard in enumerate(plan.shards)
            if counts.get(index, LineCounts()).finished < shard.count
        ]

    def decide_ending(self, status: EndStatus) -> BatchEnding:
        """Decide how the batch ends; return the earlier decision if there is one."""
        with translate_os_errors():
            cut = part_sizes(self.parts_directory)
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
        if (result := self.result) is not None:
            raise Conflict(f"The batch {request.id!r} is {result.status}, and can't be cancelled.")
        self.write_file(CANCEL, TimedModel())

    def counts(self) -> LineCounts:
        """Return the counts of the durable lines; after the end, of those in the result."""
        if (result := self.result) is not None:
            return result.counts
        ending = self.ending
        with translate_os_errors():
            shards = count_finished_lines(self.parts_directory, ending.cut if ending else None)
        if ending is None and self.has_file(DECISION):
            # The ending was decided meanwhile: some of the lines may not count.
            return self.counts()
        return sum(shards.values(), LineCounts())

    def snapshot(self) -> BatchSnapshot:
        """Return the current state of the batch.

        Raises:
            NoSuchObject: The batch doesn't exist, or it has just been removed.
        """
        plan, cancel, ending = self.plan, self.read_file(CANCEL, TimedModel), self.ending
        result = self.result
        status: BatchStatus
        if result:
            status = result.status
        elif ending and ending.status != "cancelled":
            status = "finalizing"
        elif ending or cancel:
            status = "cancelling"
        else:
            status = "in_progress" if plan else "validating"
        return BatchSnapshot(
            status=status,
            total=plan.total if plan else 0,
            counts=result.counts if result else self.counts(),
            planned_at=plan.made_at if plan else None,
            cancelled_at=cancel.at if cancel else None,
            ending_at=ending.at if ending else None,
            ended_at=result.at if result else None,
            output_file_id=result.output_file_id if result else None,
            error_file_id=result.error_file_id if result else None,
            mistakes=result.mistakes if result else [],
            # Last: reading the request raises an error if the batch was removed meanwhile.
            request=self.request,
        )


class ExtraOutput(Protocol):
    """Output that a dialect writes in addition to a batch's result files. Its methods block."""

    def write(self, results: Callable[[], Iterable[bytes | None]]) -> None:
        """Write the output. The method may be called again, or concurrently, with the same results.

        Args:
            results: Returns an iterator that yields, for each request of the input, its line of the
                output or error file; None for a request without a response.

        Raises:
            RequestError: The output can't be written because files on the volume were changed.
            VolumeError: The volume fails.
        """

    def release_reserved_file(self) -> None:
        """Release the file that was reserved for the output, unless the output was written."""


OutputFactory = Callable[[StoredBatch, Files], ExtraOutput]


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
        """Decide how a batch ends, unless that was decided before; write its files and its result.

        Several workers may do this concurrently, even while another worker still answers lines: all
        of them write the same files. Lines that finish after the decision don't count.
        """
        ending, plan = batch.decide_ending(status), batch.plan
        with translate_os_errors():
            lines = read_finished_lines(batch.parts_directory, ending.cut)
        result = BatchResult(
            status=ending.status,
            at=ending.at,
            counts=sum((line.counts for line in lines.values()), LineCounts()),
        )
        if ending.status == "failed":
            is_unchanged = plan is None or self.find_unchanged_input(batch, plan) is not None
            result.mistakes = [WORKERS_DIED if is_unchanged else INPUT_CHANGED]
        output = self._make_extra_output(batch)
        if plan is None:
            # No line was answered.
            if output is not None:
                output.release_reserved_file()
            batch.write_file(RESULT, result)
            return result

        in_order = [lines[number] for number in sorted(lines)]
        successes = [line for line in in_order if line.counts.completed]
        failures = [line for line in in_order if line.counts.failed]
        unanswered = self._make_unanswered_errors(batch, plan, lines, ending.status)
        with translate_os_errors(), open_results(in_order) as read_result:
            if successes:
                result.output_file_id = ending.output_file_id
                answers = map(read_result, successes)
                self._write_file(batch, "output", ending.output_file_id, answers)
            if failures or unanswered:
                result.error_file_id = ending.error_file_id
                errors = chain(map(read_result, failures), unanswered)
                self._write_file(batch, "error", ending.error_file_id, errors)
            if output is not None:
                numbers = range(1, plan.total + 1)
                try:
                    output.write(
                        lambda: (
                            read_result(lines[number]) if number in lines else None
                            for number in numbers
                        )
                    )
                except (RequestError, OnOtherVolume) as error:
                    # Files on the volume were changed. The output file contains the responses.
                    result.status = "failed"
                    result.mistakes = [make_mistake("no_output", error.message)]
        batch.write_file(RESULT, result)
        return result

    def fail(self, batch: Batch, mistakes: list[dict[str, Any]]) -> None:
        """End a batch as failed before any of its lines was processed."""
        batch.write_file(RESULT, BatchResult(status="failed", mistakes=mistakes))
        if (output := self._make_extra_output(batch)) is not None:
            output.release_reserved_file()

    def find_unchanged_input(self, batch: Batch, plan: BatchPlan) -> Path | None:
        """Find the input of a batch; None if it was changed or removed after it was planned."""
        with contextlib.suppress(NoSuchObject, OnOtherVolume):
            file = self.files.get(batch.request.input_file_id, include_expired=True)
            path = self.files.content_path(file)
            with translate_os_errors():
                return path if plan.matches_input(path) else None
        return None

    def _make_extra_output(self, batch: Batch) -> ExtraOutput | None:
        request = batch.request
        return self._factories[request.output](request, self.files) if request.output else None

    def _write_file(self, batch: Batch, kind: str, file_id: str, texts: Iterable[bytes]) -> None:
        expiry = batch.request.output_expires_after
        lifetime_s = expiry.seconds if expiry else None
        name = f"{batch.id}_{kind}.jsonl"
        with self.files.create(file_id, name, "batch_output", lifetime_s) as write:
            for text in texts:
                write(text + b"\n")

    def _make_unanswered_errors(
        self, batch: Batch, plan: BatchPlan, finished: Mapping[int, FinishedLine], status: EndStatus
    ) -> list[bytes]:
        """Return error lines for unanswered lines; [] if the batch failed or its input changed."""
        path = self.find_unchanged_input(batch, plan)
        if path is None or status == "failed" or len(finished) >= plan.total:
            return []
        code, message = UNANSWERED_ERRORS[status]
        endpoint = batch.request.endpoint
        errors = []
        for line in read_lines(path, self.limits.max_line_bytes):
            if line.number not in finished:
                with contextlib.suppress(InvalidLine):
                    custom_id = parse_request(line, endpoint)["custom_id"]
                    error = {"code": code, "message": message}
                    errors.append(encode_result_line(batch.id, line.number, custom_id, error=error))
        # If the input has changed while it was read, the errors are not for lines of the batch.
        return errors if self.find_unchanged_input(batch, plan) else []
