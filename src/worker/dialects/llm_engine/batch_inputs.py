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
from worker.compression import find_compression
from worker.dialects.llm_engine.batch_output import refuse_url
from worker.dialects.llm_engine.batch_requests import (
    BatchCompletionsRequest,
    SharedParameters,
    drop_optional_nulls,
)
from worker.dialects.llm_engine.completions import RENAMED_KEYS
from worker.errors import InvalidInput
from worker.files import FILE_PREFIX, Files
from worker.json_lines import escape_line_breaks
from worker.limits.bodies import MAX_TOKEN_IDS
from worker.validation import drop_nulls, name_field_in_errors
from worker.volume import ids, translate_os_errors

INPUT_KEY = "input_data_path"
PROMPTS_KEY = "prompts"
COMPLETIONS = "/v1/completions"
# Routes by the key of a body that identifies the route.
ROUTE_BY_KEY = {"messages": "/v1/chat/completions", "prompt": COMPLETIONS, "input": "/v1/responses"}
# Keys of a request that the batch overwrites: every line uses the batch's model, and none streams.
OVERWRITTEN_KEYS = ("model", "stream", "stream_options")

# Maximum nesting depth of objects and lists.
MAX_DEPTH = 200
# ijson's events that start a value other than a number.
_VALUE_EVENTS = frozenset({"string", "null", "boolean", "start_map", "start_array"})


def locate_input_file(path: str, files: Files) -> Path:
    """Return the path of the input file that a caller names by its id or its path on the volume.

    Raises:
        InvalidInput: The path is a URL, or callers may not read it.
        NoSuchObject: There is no file with this id, or its content no longer exists.
        VolumeError: There is no volume.
    """
    if ids.is_id(FILE_PREFIX, path):
        return files.content_path(files.get(path))
    with name_field_in_errors(INPUT_KEY):
        refuse_url(path, ", or the id of a file that was sent to /v1/files")
        return files.volume.input_path(path)


def convert_v1(
    request: BatchCompletionsRequest,
    path: Path | None,
    limits: BatchLimits,
    priority: int | None = None,
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v1 batch and an iterator over its lines.

    If ``path`` is None, the prompts are in the request, and errors in them are raised while
    iterating. ``priority`` is for an engine that schedules requests by priority.

    Raises:
        InvalidInput: A parameter or a prompt in the input file is invalid, or there is no prompt.
        VolumeError: The volume fails.
    """
    content = request.content if path is None else _read_with_first_prompt_only(path, limits)
    if not isinstance(content, dict):
        raise _field_error(
            "content", f"an object with {PROMPTS_KEY}, max_new_tokens and temperature"
        )
    prompts, field = content.get(PROMPTS_KEY), f"content.{PROMPTS_KEY}"
    if not isinstance(prompts, list) or not prompts:
        raise _field_error(field, "a list of at least one text")
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
    return COMPLETIONS, _make_lines(COMPLETIONS, items, make_body, field, limits)


def convert_v2(
    request: BatchCompletionsRequest,
    path: Path | None,
    limits: BatchLimits,
    priority: int | None = None,
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v2 batch, taken from its first body, and an iterator over its lines.

    See ``convert_v1`` for the arguments and for errors.
    """
    if path is None and not isinstance(request.content, list):
        message = "prompts with common parameters go to /v1/llm/batch-completions"
        raise _field_error("content", f"a list of requests' bodies; {message}")

    def iterate_items() -> Iterator[Any]:
        return iter(request.content) if path is None else _read_items(path, "item", limits)

    route = _route_of_item(0, next(iterate_items(), None))

    def make_body(index: int, item: Any) -> dict[str, Any]:
        if (item_route := _route_of_item(index, item)) != route:
            message = f"it is for {item_route}, but the first is for {route}: a batch has one route"
            raise _field_error(f"content.{index}", message)
        fields = drop_optional_nulls(item)
        body = {key: value for key, value in fields.items() if key not in OVERWRITTEN_KEYS}
        # LLM Engine's client writes 0 if the caller sets no priority, so 0 counts as absent.
        if priority is not None and not body.get("priority"):
            body["priority"] = priority
        return {**body, "model": request.config.model}

    return route, _make_lines(route, iterate_items(), make_body, "content", limits)


def _route_of_item(index: int, item: Any) -> str:
    keys = drop_nulls(item) if isinstance(item, dict) else {}
    routes = [route for key, route in ROUTE_BY_KEY.items() if key in keys]
    if len(routes) != 1:
        kinds = "messages (a chat), prompt (a completion) or input (a response)"
        raise _field_error(f"content.{index}", f"an object with one of {kinds}")
    return routes[0]


def _check_prompt(index: int, prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise _field_error(f"content.{PROMPTS_KEY}.{index}", "a prompt is a text")


def _check_request_count(index: int, limits: BatchLimits, field: str) -> None:
    if index >= limits.max_lines:
        raise _field_error(field, f"more than {limits.max_lines:,} requests (BATCH_MAX_REQUESTS)")


def _make_lines(
    url: str,
    items: Iterable[Any],
    make_body: Callable[[int, Any], dict[str, Any]],
    field: str,
    limits: BatchLimits,
) -> Iterator[bytes]:
    """Yield the lines of a batch's input file; raise ``InvalidInput`` at the first invalid item.

    ``make_body`` makes a line's body from an item's index and the item; ``field`` is the field of
    the request that contains the items, for messages.
    """
    for index, item in enumerate(items):
        item_field = f"{field}.{index}"
        _check_request_count(index, limits, field)
        try:
            body = make_body(index, item)
            request = {"custom_id": str(index), "method": "POST", "url": url, "body": body}
            text = json.dumps(request, ensure_ascii=False, allow_nan=False)
            line = escape_line_breaks(text).encode() + b"\n"
        except RecursionError:
            raise _field_error(item_field, "it is nested too deeply") from None
        except UnicodeEncodeError:
            raise _field_error(
                item_field, "a text in it contains half of a surrogate pair"
            ) from None
        except ValueError:
            raise _field_error(item_field, "a number in it is not valid in JSON") from None
        if len(line) > limits.max_line_bytes:
            raise _field_error(
                item_field, f"more than {limits.max_line_bytes:,} bytes (MAX_INPUT_MB)"
            )
        yield line


def _field_error(field: str, message: str) -> InvalidInput:
    return InvalidInput(f"{field}: {message}", param=field)


def _read_with_first_prompt_only(path: Path, limits: BatchLimits) -> Any:
    """Return the JSON value in a file without later prompts, after checking all prompts."""
    builder, keys, prompt_count = ObjectBuilder(), set[str](), 0
    with _open_json(path, limits) as file:
        for prefix, event, value in file.events():
            is_prompt = prefix == f"{PROMPTS_KEY}.item"
            if is_prompt:
                _check_prompt(prompt_count, value)
                _check_request_count(prompt_count, limits, f"content.{PROMPTS_KEY}")
                prompt_count += 1
                # Prompts after the first are not stored, so the limits apply to each prompt alone.
                # The other keys are stored, so the limits apply to all of them together.
                file.reset_counters()
            if prefix == "" and event == "map_key":
                # A second list of prompts would reset the counters for the keys before it.
                if value in keys:
                    raise InvalidInput(f"{value!r} occurs twice in the object")
                keys.add(value)
            if not is_prompt or prompt_count == 1:
                builder.event(event, value)
    return builder.value


def _read_items(path: Path, prefix: str, limits: BatchLimits) -> Iterator[Any]:
    with _open_json(path, limits) as file:
        for item in ijson.items(file.events(), prefix):
            file.reset_counters()
            yield item


class _JSONFile:
    """A JSON file that is read incrementally, with limits for each item."""

    def __init__(self, file: BinaryIO, limits: BatchLimits) -> None:
        self._file = file
        self._limits = limits
        self.reset_counters()

    def read(self, size: int) -> bytes:
        """Return the next bytes; called by ijson."""
        if self._byte_count > self._limits.max_line_bytes:
            longest = f"{self._limits.max_line_bytes:,} bytes"
            raise InvalidInput(f"a value in it has more than {longest} (MAX_INPUT_MB)")
        data = self._file.read(size)
        self._byte_count += len(data)
        return data

    def events(self) -> Iterator[tuple[str, str, Any]]:
        """Yield ijson's events for the file: prefix, event and value.

        Raises:
            InvalidInput: An item is nested too deeply or contains too many values. The limit for
                numbers is separate and higher, since numbers may be token ids.
        """
        events: Iterator[tuple[str, str, Any]] = ijson.parse(self._parse_within_limits())
        return events

    def _parse_within_limits(self) -> Iterator[tuple[str, Any]]:
        depth, max_values = 0, self._limits.max_line_values
        for event, value in ijson.basic_parse(self, use_float=True):
            depth += event.startswith("start_") - event.startswith("end_")
            self._number_count += event == "number"
            self._value_count += event in _VALUE_EVENTS
            if depth > MAX_DEPTH:
                raise InvalidInput("it is nested too deeply")
            if self._number_count > MAX_TOKEN_IDS:
                raise InvalidInput(f"a value in it contains more than {MAX_TOKEN_IDS:,} numbers")
            if self._value_count > max_values:
                message = f"more than {max_values:,} values that are no numbers"
                raise InvalidInput(f"a value in it contains {message}")
            yield event, value

    def reset_counters(self) -> None:
        """Reset the counters of bytes and values before the next item."""
        self._byte_count = self._value_count = self._number_count = 0


@contextlib.contextmanager
def _open_json(path: Path, limits: BatchLimits) -> Iterator[_JSONFile]:
    """Open an input file; messages of errors in the block start with ``input_data_path``.

    Raises:
        InvalidInput: The file does not exist, or is not valid JSON.
        VolumeError: The volume fails.
    """
    if not path.is_file():
        raise _field_error(INPUT_KEY, "there is no such file")
    with translate_os_errors():
        compression = find_compression(path)
    if compression is not None:
        raise _field_error(INPUT_KEY, f"the file is compressed ({compression})")
    try:
        with translate_os_errors(), path.open("rb") as file:
            if file.peek(len(BOM)).startswith(BOM):
                file.seek(len(BOM))
            yield _JSONFile(file, limits)
    except InvalidInput as error:
        raise _field_error(INPUT_KEY, error.message) from None
    except (ijson.JSONError, ValueError) as error:
        # The parser's message is not returned, because it quotes the file.
        reason = "it ends too early" if isinstance(error, ijson.IncompleteJSONError) else "broken"
        raise _field_error(INPUT_KEY, f"it is not valid JSON: {reason}") from None
