"""Converts the input of LLM Engine's batches to the lines of a batch's input file.

The input is part of the request, or a JSON file that is read item by item. The ``custom_id`` of a
line is the index of its item in the input, from 0.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ijson
from ijson.common import ObjectBuilder

from worker.batches.lines import BOM, BatchLimits
from worker.dialects.llm_engine.batch_output import refuse_url
from worker.dialects.llm_engine.batch_requests import (
    BatchCompletions,
    SharedParameters,
    drop_optional_nulls,
)
from worker.dialects.llm_engine.completions import RENAMED_KEYS
from worker.errors import InvalidInput
from worker.files import FILE_PREFIX, Files
from worker.limits.budget import MAX_TOKEN_IDS
from worker.validation import drop_nulls, prefix_field_name
from worker.volume import ids, translate_os_errors

INPUT_KEY = "input_data_path"
PROMPTS_KEY = "prompts"
COMPLETIONS_ROUTE = "/v1/completions"
# Routes by the key that only requests for this route have.
ROUTES_BY_KEY = {
    "messages": "/v1/chat/completions",
    "prompt": COMPLETIONS_ROUTE,
    "input": "/v1/responses",
}
# Keys of a request that the batch overwrites: every line uses the batch's model, and none streams.
OVERWRITTEN_KEYS = ("model", "stream", "stream_options")

# Maximum nesting depth of objects and lists.
MAX_DEPTH = 200
# Events of ijson that start a value, except for numbers.
_VALUE_EVENTS = frozenset({"string", "null", "boolean", "start_map", "start_array"})


def locate_input(path: str, files: Files) -> Path:
    """Return the path of an input file.

    Args:
        path: The id of a file, or a path on the volume.
        files: The files on the volume.

    Raises:
        InvalidInput: The path is a URL, or callers may not read it.
        NoSuchObject: There is no file with this id, or its content no longer exists.
        VolumeError: There is no volume.
    """
    if ids.is_id(FILE_PREFIX, path):
        return files.content_path(files.get(path))
    with prefix_field_name(INPUT_KEY):
        refuse_url(path, ", or the id of a file that was sent to /v1/files")
        return files.volume.input_path(path)


def read_v1(
    request: BatchCompletions, path: Path | None, limits: BatchLimits, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v1 batch and an iterator over its lines.

    If the request contains the prompts, errors in them are raised by iterating.

    Args:
        request: The request for the batch.
        path: Path of the input file, or None if the request contains the input.
        limits: Limits of the batch.
        priority: Priority for the scheduler, or None if it answers requests in order of arrival.

    Raises:
        InvalidInput: A key other than the prompts is invalid, there is no prompt, or a prompt in
            the input file is invalid.
        VolumeError: The volume fails.
    """
    content = request.content if path is None else _read_with_first_prompt(path, limits)
    if not isinstance(content, dict):
        raise _refusal("content", f"an object with {PROMPTS_KEY}, max_new_tokens and temperature")
    prompts, field = content.get(PROMPTS_KEY), f"content.{PROMPTS_KEY}"
    if not isinstance(prompts, list) or not prompts:
        raise _refusal(field, "a list of at least one text")
    fields = {key: value for key, value in content.items() if key != PROMPTS_KEY}
    parameters = SharedParameters.from_body(fields, container="content")
    shared: dict[str, Any] = {RENAMED_KEYS.get(name, name): value for name, value in parameters}
    log_probs = 1 if shared.pop("return_token_log_probs") else None
    shared |= {"model": request.config.model, "logprobs": log_probs, "priority": priority}
    shared = drop_nulls(shared)

    def make_body(index: int, prompt: Any) -> dict[str, Any]:
        _check_prompt(index, prompt)
        return {**shared, "prompt": prompt}

    items = prompts if path is None else _read_items(path, f"{PROMPTS_KEY}.item", limits)
    return COMPLETIONS_ROUTE, _make_lines(COMPLETIONS_ROUTE, items, make_body, field, limits)


def read_v2(
    request: BatchCompletions, path: Path | None, limits: BatchLimits, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v2 batch and an iterator over its lines; see ``read_v1``.

    The first body of the batch determines the route.
    """
    if path is None and not isinstance(request.content, list):
        message = "prompts with common parameters go to /v1/llm/batch-completions"
        raise _refusal("content", f"a list of requests' bodies; {message}")

    def items() -> Iterator[Any]:
        return iter(request.content) if path is None else _read_items(path, "item", limits)

    route = _route_of_item(0, next(items(), None))

    def make_body(index: int, item: Any) -> dict[str, Any]:
        if (item_route := _route_of_item(index, item)) != route:
            message = f"it is for {item_route}, but the first is for {route}: a batch has one route"
            raise _refusal(f"content.{index}", message)
        fields = drop_optional_nulls(item)
        body = {key: value for key, value in fields.items() if key not in OVERWRITTEN_KEYS}
        # LLM Engine's client writes 0 if the caller sets no priority.
        if priority is not None and not body.get("priority"):
            body["priority"] = priority
        return {**body, "model": request.config.model}

    return route, _make_lines(route, items(), make_body, "content", limits)


def _route_of_item(index: int, item: Any) -> str:
    keys = drop_nulls(item) if isinstance(item, dict) else {}
    routes = [route for key, route in ROUTES_BY_KEY.items() if key in keys]
    if len(routes) != 1:
        kinds = "messages (a chat), prompt (a completion) or input (a response)"
        raise _refusal(f"content.{index}", f"an object with one of {kinds}")
    return routes[0]


def _check_prompt(index: int, prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise _refusal(f"content.{PROMPTS_KEY}.{index}", "a prompt is a text")


def _check_count(index: int, limits: BatchLimits, field: str) -> None:
    """Check that an item's index (from 0) is below the maximum number of requests."""
    if index >= limits.max_lines:
        raise _refusal(field, f"more than {limits.max_lines:,} requests (BATCH_MAX_REQUESTS)")


def _make_lines(
    url: str,
    items: Iterable[Any],
    make_body: Callable[[int, Any], dict[str, Any]],
    field: str,
    limits: BatchLimits,
) -> Iterator[bytes]:
    """Yield the lines of a batch's input file, and raise an error for an item that is invalid.

    Args:
        url: The route of all lines.
        items: The items of the input.
        make_body: Makes the body of a line from the index of an item and the item.
        field: Name of the field that contains the items, for messages.
        limits: Limits of the batch.
    """
    for index, item in enumerate(items):
        item_field = f"{field}.{index}"
        _check_count(index, limits, field)
        try:
            body = make_body(index, item)
            request = {"custom_id": str(index), "method": "POST", "url": url, "body": body}
            line = json.dumps(request, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except RecursionError:
            raise _refusal(item_field, "it is nested too deeply") from None
        except UnicodeEncodeError:
            raise _refusal(item_field, "a text in it has half of a surrogate pair") from None
        except ValueError:
            raise _refusal(item_field, "a number in it is not valid in JSON") from None
        if len(line) > limits.max_line_bytes:
            raise _refusal(item_field, f"more than {limits.max_line_bytes:,} bytes (MAX_INPUT_MB)")
        yield line


def _refusal(field: str, message: str) -> InvalidInput:
    return InvalidInput(f"{field}: {message}", param=field)


def _read_with_first_prompt(path: Path, limits: BatchLimits) -> Any:
    """Return the object in a file with its first prompt only, after checking all prompts."""
    builder, keys, prompt_count = ObjectBuilder(), set[str](), 0
    with _open_json(path, limits) as file:
        for prefix, event, value in file.events():
            is_prompt = prefix == f"{PROMPTS_KEY}.item"
            if is_prompt:
                _check_prompt(prompt_count, value)
                _check_count(prompt_count, limits, f"content.{PROMPTS_KEY}")
                prompt_count += 1
                # Prompts after the first are not stored, so that the limits apply to each of them
                # alone. The other
                # keys are stored in the builder, so that the limits apply to all of them together.
                file.start_value()
            if prefix == "" and event == "map_key":
                # A second list of prompts would reset the limits for the keys between the two
                # lists.
                if value in keys:
                    raise InvalidInput(f"{value!r} stands twice in the object")
                keys.add(value)
            if not is_prompt or prompt_count == 1:
                builder.event(event, value)
    return builder.value


def _read_items(path: Path, prefix: str, limits: BatchLimits) -> Iterator[Any]:
    with _open_json(path, limits) as file:
        for item in ijson.items(file.events(), prefix):
            file.start_value()
            yield item


class _JSONFile:
    """A JSON file that is read incrementally, with limits for each value.

    Args:
        file: The open file.
        limits: Limits for each value, since each becomes one request of the batch.
    """

    def __init__(self, file: BinaryIO, limits: BatchLimits) -> None:
        self._file = file
        self._limits = limits
        self.start_value()

    def read(self, size: int) -> bytes:
        """Return the next bytes; called by ijson."""
        if self._read > self._limits.max_line_bytes:
            longest = f"{self._limits.max_line_bytes:,} bytes"
            raise InvalidInput(f"a value in it has more than {longest} (MAX_INPUT_MB)")
        data = self._file.read(size)
        self._read += len(data)
        return data

    def events(self) -> Iterator[tuple[str, str, Any]]:
        """Yield ijson's events for the file: prefix, event and value.

        Raises:
            InvalidInput: A value is nested too deeply, which ijson does not limit itself, or
                contains too many values. Numbers have a separate, higher limit, since they may be
                token ids.
        """
        events: Iterator[tuple[str, str, Any]] = ijson.parse(self._count_events())
        return events

    def _count_events(self) -> Iterator[tuple[str, Any]]:
        depth, max_values = 0, self._limits.max_line_values
        for event, value in ijson.basic_parse(self, use_float=True):
            depth += event.startswith("start_") - event.startswith("end_")
            self._numbers += event == "number"
            self._values += event in _VALUE_EVENTS
            if depth > MAX_DEPTH:
                raise InvalidInput("it is nested too deeply")
            if self._numbers > MAX_TOKEN_IDS:
                raise InvalidInput(f"a value in it holds more than {MAX_TOKEN_IDS:,} numbers")
            if self._values > max_values:
                message = f"more than {max_values:,} values that are no numbers (MAX_INPUT_VALUES)"
                raise InvalidInput(f"a value in it holds {message}")
            yield event, value

    def start_value(self) -> None:
        """Reset the counters for the next value."""
        self._read = self._values = self._numbers = 0


@contextlib.contextmanager
def _open_json(path: Path, limits: BatchLimits) -> Iterator[_JSONFile]:
    """Open an input file. Messages of errors in the block are prefixed with the file's key.

    Raises:
        InvalidInput: The file does not exist, or is not valid JSON.
        VolumeError: The volume fails.
    """
    if not path.is_file():
        raise _refusal(INPUT_KEY, "there is no such file")
    try:
        with translate_os_errors(), path.open("rb") as file:
            if file.peek(len(BOM)).startswith(BOM):
                file.seek(len(BOM))
            yield _JSONFile(file, limits)
    except InvalidInput as error:
        raise _refusal(INPUT_KEY, error.message) from None
    except (ijson.JSONError, ValueError) as error:
        # The parser's message quotes the file, so that it is not returned.
        reason = "it ends too early" if isinstance(error, ijson.IncompleteJSONError) else "broken"
        raise _refusal(INPUT_KEY, f"it is no JSON: {reason}") from None
