"""The end of a batch: its output and its errors as files, in the order of the input."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from worker.batches.lines import Plan, WrongLineError, lines, request_in
from worker.batches.llm_engine import rendering
from worker.batches.llm_engine.places import output_place
from worker.batches.parts import Finished, finished
from worker.batches.request import Kept
from worker.batches.state import FINALIZING, RESULT, Batch, Moment, Result, counted
from worker.batches.store import Batches
from worker.files import Files, Writing
from worker.volume import failures, ids, write_parts
from worker.volume.lease import Leases

# Why a line was never answered, by the batch's end.
UNANSWERED = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this line was answered."),
    "expired": ("batch_expired", "The batch expired before this line was answered."),
}


def finish(batches: Batches, batch: Batch, end: Result) -> Result:
    """Write a batch's files, and then that it has ended; whoever does so first is believed.

    Args:
        batches: of the volume.
        batch: which nobody runs any more, or whose lines beyond this moment don't count.
        end: its status and time.

    Raises:
        VolumeError: the files can't be written.
    """
    batch.write(FINALIZING, Moment(at=end.at))
    plan = batch.plan
    with failures():
        found = finished(batch.parts)
    result = counted(found.values(), plan.total if plan else 0)
    result.status, result.at = end.status, end.at
    if plan is not None:
        output, errors = _files(batches, batch, plan, found, end.status)
        result.output_file_id, result.error_file_id = output, errors
        if batch.request.form != "openai":
            _array(batches, batch.request, plan, found)
    if not batch.write(RESULT, result):
        for made in (result.output_file_id, result.error_file_id):
            if made is not None:
                batches.files.delete(made)
    written = batch.result
    assert written is not None  # for the type checker: it was just written, by whomever
    return written


def settle(batches: Batches, batch: Batch) -> None:
    """End a batch that was cancelled or has expired, if no worker is at it.

    Raises:
        VolumeError: its files can't be written.
    """
    stopping = None if batch.ended() else batch.stopping()
    if stopping is None or batch.held():
        return
    with failures(), Leases(batch.leases("end")).taken(lambda: (0, 0)) as lease:
        if lease:
            finish(batches, batch, Result(status=stopping, at=int(time.time())))


def _files(
    batches: Batches, batch: Batch, plan: Plan, found: dict[int, Finished], status: str
) -> tuple[str | None, str | None]:
    request = batch.request
    with failures(), _Texts() as texts, _Sink(batches.files, request, "output") as output:
        with _Sink(batches.files, request, "error") as errors:
            for number in sorted(found):
                line = found[number]
                (errors if line.failed else output).write(texts.of(line))
            if len(found) < plan.total:
                for text in _unanswered(batches, request, found, status):
                    errors.write(text)
        return output.id, errors.id


def _array(batches: Batches, request: Kept, plan: Plan, found: dict[int, Finished]) -> None:
    """Write the output of a batch of LLM Engine's: each of its lines is in the place of its number.

    Raises:
        InvalidInput: what is on the volume now leaves no place for it.
    """
    place = output_place(request.extra["output_data_path"], batches.volume)
    item = rendering.v1 if request.form == "llm_engine_v1" else rendering.v2
    with failures(), _Texts() as texts:
        numbers = range(1, plan.total + 1)
        all_lines = (texts.of(found[number]) if number in found else None for number in numbers)
        write_parts(place, rendering.array(all_lines, item))


def _unanswered(
    batches: Batches, request: Kept, found: dict[int, Finished], status: str
) -> Iterator[bytes]:
    """Yield an error for each line that has no answer."""
    path = batches.files.content(batches.files.get(request.input_file_id, expired=True))
    code, message = UNANSWERED[status]
    for line in lines(path, batches.limits.bytes_of_a_line):
        if line.number in found:
            continue
        with contextlib.suppress(WrongLineError):
            yield output_line(
                request.id,
                line.number,
                request_in(line, request.endpoint)["custom_id"],
                error={"code": code, "message": message},
            )


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


class _Texts:
    """The texts of finished lines, read from the parts."""

    def __init__(self) -> None:
        self._open: dict[Path, BinaryIO] = {}
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "_Texts":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def of(self, line: Finished) -> bytes:
        if line.part not in self._open:
            self._open[line.part] = self._closing.enter_context(line.part.open("rb"))
        self._open[line.part].seek(line.offset)
        return self._open[line.part].read(line.length)


class _Sink:
    """A file that begins to exist with its first line."""

    def __init__(self, files: Files, request: Kept, kind: str) -> None:
        self._files = files
        self._request = request
        self._kind = kind
        self._closing = contextlib.ExitStack()
        self._writing: Writing | None = None

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.__exit__(*exception)  # type: ignore[arg-type]  # as the caller has them

    @property
    def id(self) -> str | None:
        return self._writing.id if self._writing else None

    def write(self, text: bytes) -> None:
        if self._writing is None:
            after = self._request.output_expires_after
            self._writing = self._closing.enter_context(
                self._files.writing(
                    filename=f"{self._request.id}_{self._kind}.jsonl",
                    purpose="batch_output",
                    expires_after_s=after.seconds if after else None,
                )
            )
        self._writing.file.write(text)
