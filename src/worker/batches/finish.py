"""The end of a batch: its output and its errors as files, in the order of the input."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from worker.batches.lines import INPUT_CHANGED, Plan, WrongLineError, lines, mistake, request_in
from worker.batches.parts import Finished, finished, text_of
from worker.batches.record import Batch, BatchEnding, BatchResult, End, StoredBatch, counted
from worker.errors import NoSuchObject, RequestError
from worker.files import Files
from worker.long_work.record import RESULT
from worker.volume import failures, ids

# Why a line was never answered, by the batch's end.
UNANSWERED = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this line was answered."),
    "expired": ("batch_expired", "The batch expired before this line was answered."),
    "completed": ("answer_lost", "The volume has lost the answer of this line."),
}


class Output(Protocol):
    """What a dialect writes of its batches beside the files of results. Its methods block."""

    def write(self, results: Callable[[], Iterable[bytes | None]]) -> None:
        """Write the output; it is written again, or by two at once, with the same results.

        Args:
            results: returns, for each line of the input in turn, its line of the output or of the
                error file; None: it has none.

        Raises:
            RequestError: somebody has changed the volume, so that it can't be written.
            VolumeError: the volume fails.
        """

    def release(self) -> None:
        """Give up what was reserved for the output, if it has not been written."""


MakeOutput = Callable[[StoredBatch, Files], Output]


def finish(
    batch: Batch, status: End, files: Files, output: Output | None, longest: int
) -> BatchResult:
    """End a batch: decide how, unless that is decided, write its files, and then that it has ended.

    Two may do so at once, and another one may go on with it: all write the same.

    Args:
        batch: which nobody runs any more, or whose lines beyond this moment don't count.
        status: how it ends.
        files: of the volume.
        output: what it writes beside its files of results.
        longest: bytes of a line of its input.

    Raises:
        VolumeError: the files can't be written.
    """
    ending, plan = batch.decide(status), batch.plan
    with failures():
        found = finished(batch.parts, ending.cut, texts=True)
    result = counted(found.values(), plan.total if plan else 0)
    result.status, result.at = ending.status, ending.at
    if ending.status == "failed":
        result.mistakes = [INPUT_CHANGED]
    if plan is not None:
        rest = _unanswered(files, batch, plan, found, ending.status, longest)
        result.output_file_id, result.error_file_id = _write_files(
            files, batch.request, found, ending, rest
        )
        if output is not None:
            _write_output(output, plan, found, result)
    elif output is not None:
        output.release()
    batch.write(RESULT, result)
    return result


def fail(batch: Batch, mistakes: list[dict[str, Any]], output: Output | None) -> None:
    """End a batch of which no line has begun.

    Raises:
        VolumeError: it can't be written.
    """
    batch.write(RESULT, BatchResult(status="failed", mistakes=mistakes))
    if output is not None:
        output.release()


def input_of(files: Files, batch: Batch, plan: Plan) -> Path | None:
    """Find a batch's input; None: it is no more the one that was planned."""
    with contextlib.suppress(NoSuchObject):
        path = files.content(files.get(batch.request.input_file_id, expired=True))
        with failures():
            return path if plan.holds(path) else None
    return None


def _write_files(
    files: Files,
    request: StoredBatch,
    found: dict[int, Finished],
    ending: BatchEnding,
    rest: list[bytes],
) -> tuple[str | None, str | None]:
    """Write the output, and the errors with those of lines that have no answer, unless empty."""
    after = request.output_expires_after
    numbers = sorted(found)

    def write(kind: str, file_id: str, lines: list[Finished], more: list[bytes]) -> str | None:
        if not (lines or more):
            return None
        name, lasts_s = f"{request.id}_{kind}.jsonl", after.seconds if after else None
        with files.writing(file_id, name, "batch_output", lasts_s) as write_text:
            for line in lines:
                write_text(read(line))
            for text in more:
                write_text(text)
        return file_id

    with failures(), _texts() as read:
        answered = [found[number] for number in numbers if not found[number].failed]
        failed = [found[number] for number in numbers if found[number].failed]
        return (
            write("output", ending.output_file_id, answered, []),
            write("error", ending.error_file_id, failed, rest),
        )


def _write_output(
    output: Output, plan: Plan, found: dict[int, Finished], result: BatchResult
) -> None:
    """Write what a batch writes beside its files of results.

    Where it can't be written, since somebody has changed the volume, the result says so: the
    answers are in the output file, too.
    """
    with failures(), _texts() as read:

        def results() -> Iterator[bytes | None]:
            for number in range(1, plan.total + 1):
                yield read(found[number]) if number in found else None

        try:
            output.write(results)
        except RequestError as error:
            result.status, result.mistakes = "failed", [mistake("no_output", error.message)]


def _unanswered(
    files: Files,
    batch: Batch,
    plan: Plan,
    found: dict[int, Finished],
    status: End,
    longest: int,
) -> list[bytes]:
    """Return an error for each line that has no answer; none, if the input is gone."""
    path = input_of(files, batch, plan)
    if path is None or status == "failed" or len(found) >= plan.total:
        return []
    code, message = UNANSWERED[status]
    request = batch.request
    made = []
    for line in lines(path, longest):
        if line.number in found:
            continue
        with contextlib.suppress(WrongLineError):
            name = request_in(line, request.endpoint)["custom_id"]
            error = {"code": code, "message": message}
            made.append(output_line(request.id, line.number, name, error=error))
    # It may have changed while it was read: then these are no lines of the batch's.
    return made if input_of(files, batch, plan) else []


def output_line(
    batch_id: str,
    number: int,
    custom_id: str,
    *,
    response: dict[str, object] | None = None,
    error: dict[str, str] | None = None,
) -> bytes:
    """Return a line of an output or an error file, with its end."""
    line = {
        "id": request_id(batch_id, number),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(line) + b"\n"


def request_id(batch_id: str, number: int) -> str:
    """Return the id of a line's request, which is the same in each attempt."""
    return ids.derived("batch_req_", batch_id, str(number))


@contextlib.contextmanager
def _texts() -> Iterator[Callable[[Finished], bytes]]:
    """Yield what reads the text of a finished line from its part."""
    opened: dict[Path, BinaryIO] = {}
    with contextlib.ExitStack() as closing:

        def read(line: Finished) -> bytes:
            if line.part not in opened:
                opened[line.part] = closing.enter_context(line.part.open("rb"))
            return text_of(line, opened[line.part])

        yield read
