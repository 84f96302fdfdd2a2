"""Ends a batch: writes its output file, error file, additional output (if any) and result."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from worker.batches.lines import (
    INPUT_CHANGED,
    WORKERS_DIED,
    BatchPlan,
    InvalidLine,
    make_mistake,
    parse_request,
    read_lines,
)
from worker.batches.parts import FinishedLine, read_finished_lines, read_line_text
from worker.batches.record import (
    Batch,
    BatchEnding,
    BatchResult,
    EndStatus,
    StoredBatch,
    count_lines,
)
from worker.errors import NoSuchObject, OnOtherVolume, RequestError
from worker.files import Files
from worker.json_lines import encode_line
from worker.long_work.records import RESULT
from worker.volume import ids, translate_os_errors

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


def encode_result_line(
    batch_id: str,
    number: int,
    custom_id: str,
    *,
    response: dict[str, object] | None = None,
    error: dict[str, str] | None = None,
) -> bytes:
    """Return a line of an output or error file, with its line feed."""
    line = {
        "id": line_request_id(batch_id, number),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return encode_line(line) + b"\n"


def line_request_id(batch_id: str, number: int) -> str:
    """Return the id of a line's request, which is the same in each attempt."""
    return ids.derive_id("batch_req_", batch_id, str(number))


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
