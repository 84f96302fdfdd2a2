"""Requests for LLM Engine's batches, and their input as the lines of a batch's input file.

The input is part of the request, or a JSON file that is read item by item. The ``custom_id`` of a
line is the index of its item in the input, from 0.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import ijson
from ijson.common import ObjectBuilder
from pydantic import BaseModel, ConfigDict, Field, model_validator

from worker.batches.lines import BOM, BatchLimits
from worker.compression import find_compression
from worker.dialects.llm_engine.batch_output import refuse_url
from worker.dialects.llm_engine.completions import RENAMED_KEYS, CompletionParameters
from worker.errors import InvalidInput, field_error
from worker.files import FILE_PREFIX, Files
from worker.json_lines import escape_line_breaks
from worker.limits.inputs import MAX_TOKEN_IDS
from worker.validation import (
    MAX_KEY_LENGTH,
    MAX_METADATA_PAIRS,
    Metadata,
    StrictModel,
    Text,
    drop_nulls,
    name_field_in_errors,
)
from worker.volume import ids, translate_os_errors

# LLM Engine's default and maximum run time of a batch, in seconds.
DAY_S = 86_400
MAX_RUNTIME_S = 2 * DAY_S

# Keys of a request that describe machines. They have no effect: the endpoint's settings decide.
MACHINE_KEYS = ("cpus", "gpus", "memory", "gpu_type", "storage", "nodes_per_worker")
# Defaults that LLM Engine's client writes into model_config; they are not reported as ignored.
CLIENT_DEFAULTS = {"num_shards": 1}

_CONFIG_KEY = "model_config"

# The client writes null for each optional key without a value. vLLM's server accepts null for most
# keys of a body, but refuses it anywhere below the keys here, whose schema is OpenAI's.
NESTED_KEYS = ("messages", "input", "tools", "tool_choice", "response_format")
# Keys below ``NESTED_KEYS`` that contain objects of the caller, in which null may be a value.
OPAQUE_KEYS = ("parameters", "schema", "arguments")
# JSON keys by the client's names for them: its models can't have a field named "schema".
_JSON_KEYS = {"schema_": "schema"}

NonEmptyText = Annotated[str, Field(min_length=1)]
# 4096 is the longest path that Linux accepts.
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
PriorityText = Annotated[Text, Field(max_length=MAX_KEY_LENGTH)]


class ModelConfig(BaseModel):
    """The ``model_config`` of a request; only the model's name and the labels have an effect."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, hide_input_in_errors=True)

    model: NonEmptyText
    labels: Metadata = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        return drop_nulls(values) if isinstance(values, dict) else values


class PriorityUpdate(StrictModel):
    """A priority that was set after the batch was created."""

    priority: PriorityText | None = None


class SharedParameters(CompletionParameters):
    """The parameters that all prompts of a v1 batch share."""

    # LLM Engine's completions have defaults for the two keys below, but its batches have none.
    max_new_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)]


class BatchCompletionsRequest(StrictModel):
    """A request for a batch, with the keys that both versions of the route share."""

    config: Annotated[ModelConfig, Field(alias=_CONFIG_KEY)]
    output_data_path: PathText
    input_data_path: PathText | None = None
    content: Any = None
    labels: Metadata = Field(default_factory=dict)
    data_parallelism: Annotated[int, Field(ge=1, le=64)] = 1
    max_runtime_sec: Annotated[int, Field(ge=1, le=MAX_RUNTIME_S)] = DAY_S
    priority: PriorityText | None = None
    tool_config: Any = None
    cpus: Any = None
    gpus: Any = None
    memory: Any = None
    gpu_type: Any = None
    storage: Any = None
    nodes_per_worker: Any = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.tool_config is not None:
            # LLM Engine's only tool executes code that the model has written, on the server.
            message = (
                "this worker runs no tools, and no code that a model has written; the requests of "
                "a v2 batch may have tools of their own, whose calls are part of the output"
            )
            raise field_error("tool_config", message)
        if (self.content is None) == (self.input_data_path is None):
            raise field_error("content", "either the content itself, or input_data_path")
        if len(self._all_labels) > MAX_METADATA_PAIRS:
            message = f"with those of {_CONFIG_KEY} at most {MAX_METADATA_PAIRS} pairs"
            raise field_error("labels", message)
        return self

    @property
    def _all_labels(self) -> dict[str, str]:
        """The labels of the request and of its ``model_config``, where the client repeats them."""
        return {**self.config.labels, **self.labels}

    @property
    def metadata(self) -> dict[str, str]:
        """The labels, and under ``without_effect`` the names of the ignored keys."""
        metadata = self._all_labels
        if names := self.ignored_keys:
            metadata["without_effect"] = f"{', '.join(names)}: the endpoint's settings decide"
        return metadata

    @property
    def ignored_keys(self) -> list[str]:
        """Names of up to 16 keys that have no effect, because the endpoint's settings decide."""
        config = self.config.model_extra or {}
        keys = [key for key, item in config.items() if item and item != CLIENT_DEFAULTS.get(key)]
        names = [
            *(name for name in MACHINE_KEYS if getattr(self, name) is not None),
            *(f"{_CONFIG_KEY}.{key}" for key in keys),
        ]
        return [name[:MAX_KEY_LENGTH] for name in names[:MAX_METADATA_PAIRS]]

    @property
    def scheduler_priority(self) -> int | None:
        """The priority as an integer, or None if it is not set, is no integer or is too long."""
        text = (self.priority or "").strip()
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None


def drop_optional_nulls(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a v2 request without the null values that mean an absent key.

    Below ``NESTED_KEYS``, the client's names of keys are also replaced (``_JSON_KEYS``).
    """
    return {
        key: _drop_nested_nulls(value) if key in NESTED_KEYS else value
        for key, value in body.items()
        if value is not None
    }


def _drop_nested_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_nested_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {_JSON_KEYS.get(key, key): item for key, item in value.items() if item is not None}
    return {
        key: item if key in OPAQUE_KEYS else _drop_nested_nulls(item)
        for key, item in renamed.items()
    }


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
    """Return the path of the input file that a caller names by its id or its path on the volume."""
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
    """
    content = request.content if path is None else _read_with_first_prompt_only(path, limits)
    if not isinstance(content, dict):
        raise field_error(
            "content", f"an object with {PROMPTS_KEY}, max_new_tokens and temperature"
        )
    prompts, field = content.get(PROMPTS_KEY), f"content.{PROMPTS_KEY}"
    if not isinstance(prompts, list) or not prompts:
        raise field_error(field, "a list of at least one text")
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

    See ``convert_v1`` for the arguments.
    """
    if path is None and not isinstance(request.content, list):
        message = "prompts with common parameters go to /v1/llm/batch-completions"
        raise field_error("content", f"a list of requests' bodies; {message}")

    def iterate_items() -> Iterator[Any]:
        return iter(request.content) if path is None else _read_items(path, "item", limits)

    route = _route_of_item(0, next(iterate_items(), None))

    def make_body(index: int, item: Any) -> dict[str, Any]:
        if (item_route := _route_of_item(index, item)) != route:
            message = f"it is for {item_route}, but the first is for {route}: a batch has one route"
            raise field_error(f"content.{index}", message)
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
        raise field_error(f"content.{index}", f"an object with one of {kinds}")
    return routes[0]


def _check_prompt(index: int, prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise field_error(f"content.{PROMPTS_KEY}.{index}", "a prompt is a text")


def _check_request_count(index: int, limits: BatchLimits, field: str) -> None:
    if index >= limits.max_lines:
        raise field_error(field, f"more than {limits.max_lines:,} requests (BATCH_MAX_REQUESTS)")


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
            raise field_error(item_field, "it is nested too deeply") from None
        except UnicodeEncodeError:
            raise field_error(
                item_field, "a text in it contains half of a surrogate pair"
            ) from None
        except ValueError:
            raise field_error(item_field, "a number in it is not valid in JSON") from None
        if len(line) > limits.max_line_bytes:
            raise field_error(
                item_field, f"more than {limits.max_line_bytes:,} bytes (MAX_INPUT_MB)"
            )
        yield line


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
        """Return the next bytes, for ijson."""
        if self._byte_count > self._limits.max_line_bytes:
            longest = f"{self._limits.max_line_bytes:,} bytes"
            raise InvalidInput(f"a value in it has more than {longest} (MAX_INPUT_MB)")
        data = self._file.read(size)
        self._byte_count += len(data)
        return data

    def events(self) -> Iterator[tuple[str, str, Any]]:
        """Yield ijson's events for the file: prefix, event and value."""
        events: Iterator[tuple[str, str, Any]] = ijson.parse(self._parse_within_limits())
        return events

    def _parse_within_limits(self) -> Iterator[tuple[str, Any]]:
        # The limit for numbers is separate and higher, since numbers may be token ids.
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
    """Open an input file; messages of errors in the block start with ``input_data_path``."""
    if not path.is_file():
        raise field_error(INPUT_KEY, "there is no such file")
    with translate_os_errors():
        compression = find_compression(path)
    if compression is not None:
        raise field_error(INPUT_KEY, f"the file is compressed ({compression})")
    try:
        with translate_os_errors(), path.open("rb") as file:
            if file.peek(len(BOM)).startswith(BOM):
                file.seek(len(BOM))
            yield _JSONFile(file, limits)
    except InvalidInput as error:
        raise field_error(INPUT_KEY, error.message) from None
    except (ijson.JSONError, ValueError) as error:
        # The parser's message is not returned, because it quotes the file.
        reason = "it ends too early" if isinstance(error, ijson.IncompleteJSONError) else "broken"
        raise field_error(INPUT_KEY, f"it is not valid JSON: {reason}") from None
