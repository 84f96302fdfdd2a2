"""The input of LLM Engine's batches: in the request, or a JSON file that is read item by item."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ijson
from ijson.common import ObjectBuilder

from worker.batches.lines import BOM, Limits
from worker.dialects.llm_engine import batch_lines as lines
from worker.dialects.llm_engine.batch_output import check_no_address
from worker.dialects.llm_engine.batch_requests import BatchRequest, Content
from worker.errors import InvalidInput
from worker.files import PREFIX, Files
from worker.limits.budget import MOST_TOKEN_IDS
from worker.validation import of_field, unknown_key
from worker.volume import failures, ids

INPUT = "input_data_path"
PROMPTS = "prompts"
# Objects and lists inside one another.
MOST_LEVELS = 200
# What begins a value in ijson's words, but for numbers.
_VALUES = frozenset({"string", "null", "boolean", "start_map", "start_array"})

_V1 = f"an object with {PROMPTS}, max_new_tokens and temperature"
_V2 = "a list of requests' bodies"


def input_place(path: str, files: Files) -> Path:
    """Return where an input is: the id of a file, or a path on the volume.

    Raises:
        InvalidInput: it is an address, or a path that is not for callers.
        NoSuchObject: there is no such file.
        VolumeError: there is no volume.
    """
    if ids.fits(PREFIX, path):
        return files.content(files.get(path))
    with of_field(INPUT):
        check_no_address(path, ", or the id of a file that was sent to /v1/files")
        return files.volume.input(path)


def v1(
    asked: BatchRequest, place: Path | None, limits: Limits, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v1 batch, and its lines; who iterates gets the mistakes in them.

    Args:
        asked: the request.
        place: its input file; None: the input is in the request.
        limits: of the batch.
        priority: for the scheduler; None: it answers requests in their order.

    Raises:
        InvalidInput: what is beside the prompts is wrong, or there are none.
        VolumeError: the volume fails.
    """
    given = asked.content if place is None else _beside_prompts(place, limits)
    if not isinstance(given, dict):
        raise InvalidInput(f"content: {_V1}", param="content")
    found = given.get(PROMPTS)
    if not isinstance(found, list) or not found:
        message = f"content.{PROMPTS}: a list of at least one text"
        raise InvalidInput(message, param=f"content.{PROMPTS}")
    content = Content.read({key: value for key, value in given.items() if key != PROMPTS})
    prompts = found if place is None else _items(place, f"{PROMPTS}.item", limits)
    made = lines.of_prompts(prompts, content, asked.config.model, priority)
    return lines.COMPLETIONS, _bounded(made, limits, f"content.{PROMPTS}")


def v2(
    asked: BatchRequest, place: Path | None, limits: Limits, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v2 batch, and its lines; who iterates gets the mistakes in them.

    Its arguments are those of ``v1``.

    Raises:
        InvalidInput: there is no first body, or it is wrong.
        VolumeError: the volume fails.
    """
    if place is None and not isinstance(asked.content, list):
        message = f"{_V2}; prompts with common parameters go to /v1/llm/batch-completions"
        raise InvalidInput(f"content: {message}", param="content")
    first = next(iter(asked.content if place is None else _items(place, "item", limits)), None)
    url = lines.route_of(first)
    bodies = asked.content if place is None else _items(place, "item", limits)
    made = lines.of_bodies(bodies, url, asked.config.model, priority)
    return url, _bounded(made, limits, "content")


def _bounded(made: Iterator[bytes], limits: Limits, place: str) -> Iterator[bytes]:
    """Yield lines that the batch would not refuse, either."""
    for index, line in enumerate(made):
        _check_count(index, limits, place)
        if len(line) > limits.bytes_of_a_line:
            message = f"more than {limits.bytes_of_a_line:,} bytes (MAX_INPUT_MB)"
            raise InvalidInput(f"{place}.{index}: {message}", param=f"{place}.{index}")
        yield line


def _check_count(index: int, limits: Limits, place: str) -> None:
    """Check that a batch may have a request of this index, from 0."""
    if index >= limits.lines:
        message = f"more than {limits.lines:,} requests (BATCH_MAX_REQUESTS)"
        raise InvalidInput(f"{place}: {message}", param=place)


def _beside_prompts(place: Path, limits: Limits) -> dict[str, Any]:
    """Return the object in a file, with one prompt in place of all."""
    builder, keys, prompts = ObjectBuilder(), set[str](), 0
    with _opened(place, limits) as opened:
        for prefix, event, value in ijson.parse(_events(opened)):
            if prefix == f"{PROMPTS}.item":
                lines.check_prompt(prompts, value)
                _check_count(prompts, limits, f"content.{PROMPTS}")
                prompts += 1
                # The rest is kept here, and counts as one value.
                opened.go_on()
                continue
            if prefix == "" and event == "map_key":
                _check_key(value, keys)
            builder.event(event, value)
    found = builder.value
    if isinstance(found, dict) and isinstance(listed := found.get(PROMPTS), list) and prompts:
        listed.append("")
    return found if isinstance(found, dict) else {}


def _check_key(key: str, keys: set[str]) -> None:
    """Note a key of the object, which nobody knows or which stands twice.

    Raises:
        InvalidInput: one of the two.
    """
    known = {PROMPTS, *Content.model_fields}
    if key in keys:
        raise InvalidInput(f"{key!r} stands twice in the object")
    if key not in known:
        raise InvalidInput(unknown_key(key, known))
    keys.add(key)


def _items(place: Path, prefix: str, limits: Limits) -> Iterator[Any]:
    with _opened(place, limits) as opened:
        for item in ijson.items(ijson.parse(_events(opened)), prefix):
            opened.go_on()
            yield item


def _events(opened: "_Bounded") -> Iterator[tuple[str, Any]]:
    """Yield the events of a JSON text.

    Raises:
        InvalidInput: it is nested too deeply, of which ijson would take no notice for long.
    """
    depth = 0
    for event, value in ijson.basic_parse(opened, use_float=True):
        opened.count(event)
        depth += event.startswith("start_") - event.startswith("end_")
        if depth > MOST_LEVELS:
            raise InvalidInput("it is nested too deeply")
        yield event, value


class _Bounded:
    """A file of which only so much is read until a value is complete.

    Args:
        opened: the file.
        limits: of a request, which the value becomes.
    """

    def __init__(self, opened: BinaryIO, limits: Limits) -> None:
        self._opened = opened
        self._limits = limits
        self.go_on()

    def read(self, size: int) -> bytes:
        if self._read > self._limits.bytes_of_a_line:
            longest = f"{self._limits.bytes_of_a_line:,} bytes"
            raise InvalidInput(f"a value in it has more than {longest} (MAX_INPUT_MB)")
        found = self._opened.read(size)
        self._read += len(found)
        return found

    def count(self, event: str) -> None:
        """Count a value by the event that begins it; numbers may be token ids, of which many fit.

        Raises:
            InvalidInput: there are too many.
        """
        if event == "number":
            self._numbers += 1
        elif event in _VALUES:
            self._values += 1
        if self._numbers > MOST_TOKEN_IDS:
            raise InvalidInput(f"a value in it holds more than {MOST_TOKEN_IDS:,} numbers")
        if self._values > self._limits.values_of_a_line:
            most = f"{self._limits.values_of_a_line:,} values that are no numbers"
            raise InvalidInput(f"a value in it holds more than {most} (MAX_INPUT_VALUES)")

    def go_on(self) -> None:
        self._read = self._values = self._numbers = 0


@contextlib.contextmanager
def _opened(place: Path, limits: Limits) -> Iterator[_Bounded]:
    """Open an input file.

    Raises:
        InvalidInput: there is none, or it is no JSON of the right form.
        VolumeError: the volume fails.
    """
    if not place.is_file():
        raise InvalidInput(f"{INPUT}: there is no such file", param=INPUT)
    try:
        with failures(), place.open("rb") as opened:
            if opened.peek(len(BOM)).startswith(BOM):
                opened.seek(len(BOM))
            yield _Bounded(opened, limits)
    except InvalidInput as error:
        raise InvalidInput(f"{INPUT}: {error.message}", param=INPUT) from None
    except (ijson.JSONError, ValueError) as broken:
        # Its message quotes the file.
        reason = "it ends too early" if isinstance(broken, ijson.IncompleteJSONError) else "broken"
        raise InvalidInput(f"{INPUT}: it is no JSON: {reason}", param=INPUT) from None
