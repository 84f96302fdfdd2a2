"""The output file of LLM Engine's batches: a JSON array in the order of the requests."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Raw, Struct

from worker.batches.record import OutputFactory, StoredBatch
from worker.errors import Conflict, InvalidInput, OnOtherVolume
from worker.files import Files, equals_chunks
from worker.json_lines import encode_line
from worker.validation import name_field_in_errors
from worker.volume import translate_os_errors
from worker.volume.durable import write_chunks, write_once

log = logging.getLogger(__name__)

OUTPUT_KEY = "output_data_path"
NULL = b"null"
_URL_PREFIXES = ("http://", "https://")


class _Response(Struct):
    status_code: int
    body: Raw


class _ResultLine(Struct):
    """A line of a batch's output or error file; without ``response``, the request was not sent."""

    response: _Response | None = None


_decoder = msgspec.json.Decoder(_ResultLine)


def make_item_v1(line: bytes | None) -> bytes:
    """Return a completion in LLM Engine's format; null without a line or a completion."""
    response = _decoder.decode(line).response if line else None
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
        if logprobs := choice.get("logprobs"):
            pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
            item["tokens"] = [{"token": token, "log_prob": log_prob} for token, log_prob in pairs]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # An invalid response must not stop the batch. OpenAI's output file contains all of it.
        log.exception("an answer is not a completion")
        return NULL
    return encode_line(item)


def make_item_v2(line: bytes | None) -> bytes:
    """Return the body of a response, which may be an error; null if the request was not sent."""
    response = _decoder.decode(line).response if line else None
    return NULL if response is None else bytes(response.body)


# Makes an item of the array from a line of the output or error file; None if there is no line.
MakeItem = Callable[[bytes | None], bytes]


class ArrayOutput:
    """The file that a batch writes its results to. Its methods block, so call them in a thread.

    From the creation of the batch until its end, the file contains the batch's id, so that no other
    batch can write to the same path. The output counts towards the quota of ``files``.
    """

    def __init__(
        self, path: str, files: Files, id: str, make_item: MakeItem = make_item_v2
    ) -> None:
        self._path = path
        self._files = files
        self._make_item = make_item
        self._marker = b'{"job_id": "%b"}\n' % id.encode()

    @classmethod
    def from_batch(cls, make_item: MakeItem, batch: StoredBatch, files: Files) -> Self:
        return cls(batch.extra[OUTPUT_KEY], files, batch.id, make_item)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Reserve the file for the batch; an exception in the block releases it."""
        with name_field_in_errors(OUTPUT_KEY):
            path = self._resolve_path()
            with translate_os_errors():
                if not write_once(path, self._marker) and not self._is_own_reservation(path):
                    raise Conflict(f"{self._path}: there is a file already, or a batch's output")
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.release_reserved_file)
            yield
            on_failure.pop_all()

    def write(self, results: Callable[[], Iterable[bytes | None]]) -> None:
        """Write the array, unless the file already has this content from an earlier call."""
        with name_field_in_errors(OUTPUT_KEY):
            path = self._resolve_path()
            with translate_os_errors():
                if write_once(path, self._marker) or self._is_own_reservation(path):
                    write_chunks(
                        path, self._files.chunks_within_quota(self._encode_array(results()))
                    )
                elif not equals_chunks(path, self._encode_array(results())):
                    raise Conflict(f"{self._path}: another process has created a file there")

    def release_reserved_file(self) -> None:
        """Remove the reservation unless the batch has written its output."""
        with contextlib.suppress(InvalidInput, OnOtherVolume), translate_os_errors():
            path = self._resolve_path()
            if self._is_own_reservation(path):
                path.unlink(missing_ok=True)

    def _encode_array(self, results: Iterable[bytes | None]) -> Iterator[bytes]:
        separator = b"[\n"
        for line in results:
            yield separator + self._make_item(line)
            separator = b",\n"
        yield b"[]\n" if separator == b"[\n" else b"\n]\n"

    def _resolve_path(self) -> Path:
        refuse_url(self._path)
        path = self._files.volume.output_path(self._path)
        existing_parent = next(parent for parent in path.parents if parent.exists())
        if path.is_dir() or not existing_parent.is_dir():
            raise InvalidInput(f"{self._path}: no file can be created there")
        return path

    def _is_own_reservation(self, path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(self._marker) + 1) == self._marker


# Factories of ``ArrayOutput``, by the value of ``StoredBatch.output``.
OUTPUTS: Mapping[str, OutputFactory] = {
    "llm_engine_v1": partial(ArrayOutput.from_batch, make_item_v1),
    "llm_engine_v2": partial(ArrayOutput.from_batch, make_item_v2),
}


def refuse_url(path: str, alternative: str = "") -> None:
    """Refuse the URL of a web server; ``alternative`` ends the message's accepted values."""
    if path.startswith(_URL_PREFIXES):
        raise InvalidInput(
            "this worker fetches nothing from an address, and sends nothing to one: "
            f"a path on its volume, s3://<volume id>/key{alternative}"
        )
