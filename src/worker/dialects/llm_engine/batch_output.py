"""The output of LLM Engine's batches: one JSON array, in the order of the requests."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Raw, Struct

from worker.batches.finish import MakeOutput
from worker.batches.record import StoredBatch
from worker.errors import Conflict, InvalidInput
from worker.files import Files
from worker.files.stored import holds
from worker.validation import of_field
from worker.volume import failures, write_once, write_parts

log = logging.getLogger(__name__)

OUTPUT = "output_data_path"
NULL = b"null"
_URLS = ("http://", "https://")


class _Response(Struct):
    status_code: int
    body: Raw


class _Result(Struct):
    """A line of a batch's output or error file: ``error`` is for what was not asked at all."""

    response: _Response | None = None


_line = msgspec.json.Decoder(_Result)


def v1(line: bytes | None) -> bytes:
    """Return a completion in LLM Engine's words; null for what failed or was not asked."""
    response = _line.decode(line).response if line else None
    if response is None or response.status_code >= 400:
        return NULL
    completion = msgspec.json.decode(response.body)
    try:
        choice, usage = completion["choices"][0], completion["usage"]
        item = {
            "text": choice["text"],
            "num_prompt_tokens": usage["prompt_tokens"],
            "num_completion_tokens": usage["completion_tokens"],
        }
        if probs := choice.get("logprobs"):
            pairs = zip(probs["tokens"], probs["token_logprobs"], strict=True)
            item["tokens"] = [{"token": token, "log_prob": log_prob} for token, log_prob in pairs]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # A batch with a strange answer has to end, too; in its output file the answer is whole.
        log.exception("an answer is no completion")
        return NULL
    return msgspec.json.encode(item)


def v2(line: bytes | None) -> bytes:
    """Return the body that answered a request, be it an error; null for what was not asked."""
    response = _line.decode(line).response if line else None
    return NULL if response is None else bytes(response.body)


# Makes an item of the array out of a line of the output or the error file; None: there is none.
Item = Callable[[bytes | None], bytes]


class ArrayOutput:
    """The file that a batch writes its results to. Its methods block: they are for threads.

    From the creation of the batch to its end, the file holds the batch's id, so that no other
    batch can write there.

    Args:
        path: as the caller named it.
        files: of the volume, with which it counts.
        batch_id: the batch's.
        item: ``v1`` or ``v2``.
    """

    def __init__(self, path: str, files: Files, batch_id: str, item: Item = v2) -> None:
        self._path = path
        self._files = files
        self._item = item
        self._mark = b'{"job_id": "%b"}\n' % batch_id.encode()

    @classmethod
    def of(cls, item: Item, asked: StoredBatch, files: Files) -> Self:
        return cls(asked.extra[OUTPUT], files, asked.id, item)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve the file for the batch; an exception in the block releases it.

        Raises:
            InvalidInput: no file can be there, or not one of a caller's.
            Conflict: there is a file already, or another batch will write there.
            VolumeError: the volume fails, or there is none.
        """
        with of_field(OUTPUT):
            place = self._place()
            with failures():
                if not write_once(place, self._mark) and not self._is_reserved(place):
                    raise Conflict(f"{self._path}: there is a file already, or a batch's output")
        with contextlib.ExitStack() as unless_created:
            unless_created.callback(self.release)
            yield
            unless_created.pop_all()

    def write(self, results: Callable[[], Iterable[bytes | None]]) -> None:
        """Write the array; see ``worker.batches.finish.Output``.

        Raises:
            InvalidInput: no file can be there any more.
            Conflict: somebody else has put a file there.
            VolumeError: the volume fails.
        """
        with of_field(OUTPUT):
            place = self._place()
            with failures():
                if write_once(place, self._mark) or self._is_reserved(place):
                    write_parts(place, self._files.counted(self._array(results())))
                elif not holds(place, self._array(results())):
                    raise Conflict(f"{self._path}: somebody else has put a file there")

    def release(self) -> None:
        """Remove the file if the batch has not written its output."""
        with contextlib.suppress(InvalidInput), failures():
            place = self._place()
            if self._is_reserved(place):
                place.unlink(missing_ok=True)

    def _array(self, results: Iterable[bytes | None]) -> Iterator[bytes]:
        before = b"[\n"
        for line in results:
            yield before + self._item(line)
            before = b",\n"
        yield b"[]\n" if before == b"[\n" else b"\n]\n"

    def _place(self) -> Path:
        check_no_address(self._path)
        place = self._files.volume.written(self._path)
        first = next(parent for parent in place.parents if parent.exists())
        if place.is_dir() or not first.is_dir():
            raise InvalidInput(f"{self._path}: no file can be there")
        return place

    def _is_reserved(self, place: Path) -> bool:
        if not place.is_file():
            return False
        with place.open("rb") as opened:
            return opened.read(len(self._mark) + 1) == self._mark


# By the names that requests have for them.
OUTPUTS: Mapping[str, MakeOutput] = {
    "llm_engine_v1": partial(ArrayOutput.of, v1),
    "llm_engine_v2": partial(ArrayOutput.of, v2),
}


def check_no_address(path: str, otherwise: str = "") -> None:
    """Check that a path is none of a web server's.

    Raises:
        InvalidInput: it is; ``otherwise`` is the end of what callers can send.
    """
    if path.startswith(_URLS):
        raise InvalidInput(
            "this worker fetches nothing from an address, and sends nothing to one: "
            f"a path on its volume, s3://<volume id>/key{otherwise}"
        )
