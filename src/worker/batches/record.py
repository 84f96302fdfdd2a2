"""Batches on the volume: their requests, progress and results. Their files are their state."""

import contextlib
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Literal, Protocol

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
    encode_result_line,
    read_finished_lines,
    read_line_text,
    records_file_sizes,
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


# Error code and message of unanswered lines, by the status of the batch.
UNANSWERED_ERRORS = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this line was answered."),
    "expired": ("batch_expired", "The batch expired before this line was answered."),
    "completed": ("answer_lost", "The volume has lost the answer of this line."),
}


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


def finish_batch(
    batch: Batch, status: EndStatus, files: Files, output: ExtraOutput | None, max_line_bytes: int
) -> BatchResult:
    """Decide how a batch ends, unless that was decided before; write its files and then its result.

    Several workers may do this concurrently, even while another worker still answers lines: all of
    them write the same files.

    Args:
        batch: Batch to end. Lines that finish after the decision don't count.
        status: Status of the batch if the ending is not yet decided.
        files: Files of the volume.
        output: Additional output of the batch, if any.
        max_line_bytes: Maximum bytes of a line of the input.

    Raises:
        VolumeError: The files can't be written.
    """
    ending, plan = batch.decide_ending(status), batch.plan
    with translate_os_errors():
        lines = read_finished_lines(batch.parts_directory, ending.cut, check_texts=True)
    result = count_lines(lines.values(), plan.total if plan else 0)
    result.status, result.at = ending.status, ending.at
    if ending.status == "failed":
        is_unchanged = plan is None or find_unchanged_input(files, batch, plan) is not None
        result.mistakes = [WORKERS_DIED if is_unchanged else INPUT_CHANGED]
    if plan is not None:
        unanswered = _unanswered_errors(files, batch, plan, lines, ending.status, max_line_bytes)
        result.output_file_id, result.error_file_id = _write_result_files(
            files, batch.request, lines, ending, unanswered
        )
        if output is not None:
            _write_extra_output(output, plan, lines, result)
    elif output is not None:
        output.release_reserved_file()
    batch.write_file(RESULT, result)
    return result


def fail_batch(batch: Batch, mistakes: list[dict[str, Any]], output: ExtraOutput | None) -> None:
    """End a batch as failed before any of its lines was processed.

    Raises:
        VolumeError: The result can't be written.
    """
    batch.write_file(RESULT, BatchResult(status="failed", mistakes=mistakes))
    if output is not None:
        output.release_reserved_file()


def find_unchanged_input(files: Files, batch: Batch, plan: BatchPlan) -> Path | None:
    """Find the input of a batch; None if it was changed or removed after it was planned."""
    with contextlib.suppress(NoSuchObject, OnOtherVolume):
        path = files.content_path(files.get(batch.request.input_file_id, include_expired=True))
        with translate_os_errors():
            return path if plan.matches_input(path) else None
    return None


def _write_result_files(
    files: Files,
    request: StoredBatch,
    lines: dict[int, FinishedLine],
    ending: BatchEnding,
    unanswered: list[bytes],
) -> tuple[str | None, str | None]:
    """Write the output file and the error file, and return their ids; None for an empty file."""
    expiry = request.output_expires_after
    numbers = sorted(lines)

    def write_file(kind: str, file_id: str, numbers: list[int], errors: list[bytes]) -> str | None:
        if not (numbers or errors):
            return None
        name, lifetime_s = f"{request.id}_{kind}.jsonl", expiry.seconds if expiry else None
        with files.create(file_id, name, "batch_output", lifetime_s) as write_text:
            for number in numbers:
                write_text(read_line(lines[number]))
            for text in errors:
                write_text(text)
        return file_id

    with translate_os_errors(), _line_reader() as read_line:
        successes = [number for number in numbers if not lines[number].failed]
        failures = [number for number in numbers if lines[number].failed]
        return (
            write_file("output", ending.output_file_id, successes, []),
            write_file("error", ending.error_file_id, failures, unanswered),
        )


def _write_extra_output(
    output: ExtraOutput, plan: BatchPlan, lines: dict[int, FinishedLine], result: BatchResult
) -> None:
    """Write the additional output of a batch.

    If that is impossible because files on the volume were changed, the batch fails, although its
    output file contains the responses.
    """
    with translate_os_errors(), _line_reader() as read_line:

        def result_lines() -> Iterator[bytes | None]:
            for number in range(1, plan.total + 1):
                yield read_line(lines[number]) if number in lines else None

        try:
            output.write(result_lines)
        except (RequestError, OnOtherVolume) as error:
            result.status, result.mistakes = "failed", [make_mistake("no_output", error.message)]


def _unanswered_errors(
    files: Files,
    batch: Batch,
    plan: BatchPlan,
    finished_lines: dict[int, FinishedLine],
    status: EndStatus,
    max_line_bytes: int,
) -> list[bytes]:
    """Return error lines for unanswered lines; [] if the batch failed or its input changed."""
    path = find_unchanged_input(files, batch, plan)
    if path is None or status == "failed" or len(finished_lines) >= plan.total:
        return []
    code, message = UNANSWERED_ERRORS[status]
    request = batch.request
    errors = []
    for line in read_lines(path, max_line_bytes):
        if line.number in finished_lines:
            continue
        with contextlib.suppress(InvalidLine):
            custom_id = parse_request(line, request.endpoint)["custom_id"]
            error = {"code": code, "message": message}
            errors.append(encode_result_line(request.id, line.number, custom_id, error=error))
    # If the input has changed while it was read, the errors are not for lines of the batch.
    return errors if find_unchanged_input(files, batch, plan) else []


@contextlib.contextmanager
def _line_reader() -> Iterator[Callable[[FinishedLine], bytes]]:
    """Yield a function that reads the text of a finished line from its part."""
    files: dict[Path, BinaryIO] = {}
    with contextlib.ExitStack() as stack:

        def read_line(line: FinishedLine) -> bytes:
            if line.part not in files:
                files[line.part] = stack.enter_context(line.part.open("rb"))
            return read_line_text(line, files[line.part])

        yield read_line


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
