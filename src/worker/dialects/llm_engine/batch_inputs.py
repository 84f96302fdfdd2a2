"""The input of LLM Engine's batches, as the lines of the input file that any batch has.

It stands in the request, or in a JSON file that is read item by item. The ``custom_id`` of a line
is its place in the input, from 0.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ijson
from ijson.common import ObjectBuilder

from worker.batches.lines import BOM, Limits
from worker.dialects.llm_engine.batch_output import check_no_address
from worker.dialects.llm_engine.batch_requests import BatchCompletions, Content, plain
from worker.dialects.llm_engine.completions import RENAMED
from worker.errors import InvalidInput
from worker.files import PREFIX, Files
from worker.limits.budget import MOST_TOKEN_IDS
from worker.validation import of_field, without_nulls
from worker.volume import failures, ids

INPUT = "input_data_path"
PROMPTS = "prompts"
COMPLETIONS = "/v1/completions"
# The key that only requests of a kind have -> their route.
ROUTES = {"messages": "/v1/chat/completions", "prompt": COMPLETIONS, "input": "/v1/responses"}
# What a caller's request does not decide: every line names the batch's model, none is streamed.
OVERWRITTEN = ("model", "stream", "stream_options")

# Objects and lists inside one another.
MOST_LEVELS = 200
# What begins a value in ijson's words, but for numbers.
_VALUES = frozenset({"string", "null", "boolean", "start_map", "start_array"})


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
    asked: BatchCompletions, place: Path | None, limits: Limits, priority: int | None = None
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
        raise _refusal("content", f"an object with {PROMPTS}, max_new_tokens and temperature")
    found, holder = given.get(PROMPTS), f"content.{PROMPTS}"
    if not isinstance(found, list) or not found:
        raise _refusal(holder, "a list of at least one text")
    beside = {key: value for key, value in given.items() if key != PROMPTS}
    content = Content.of_body(beside, holder="content")
    shared: dict[str, Any] = {RENAMED.get(name, name): value for name, value in content}
    log_probs = 1 if shared.pop("return_token_log_probs") else None
    shared |= {"model": asked.config.model, "logprobs": log_probs, "priority": priority}
    shared = without_nulls(shared)

    def body(index: int, prompt: Any) -> dict[str, Any]:
        _check_prompt(index, prompt)
        return {**shared, "prompt": prompt}

    prompts = found if place is None else _items(place, f"{PROMPTS}.item", limits)
    return COMPLETIONS, _lines(COMPLETIONS, prompts, body, holder, limits)


def v2(
    asked: BatchCompletions, place: Path | None, limits: Limits, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v2 batch, which its first body has, and its lines: see ``v1``."""
    if place is None and not isinstance(asked.content, list):
        message = "prompts with common parameters go to /v1/llm/batch-completions"
        raise _refusal("content", f"a list of requests' bodies; {message}")

    def items() -> Iterator[Any]:
        return iter(asked.content) if place is None else _items(place, "item", limits)

    url = _route(0, next(items(), None))

    def body(index: int, item: Any) -> dict[str, Any]:
        if (found := _route(index, item)) != url:
            message = f"it is for {found}, but the first is for {url}: a batch has one route"
            raise _refusal(f"content.{index}", message)
        made = {key: value for key, value in plain(item).items() if key not in OVERWRITTEN}
        # LLM Engine's client writes 0 where nobody asked for one.
        if priority is not None and not made.get("priority"):
            made["priority"] = priority
        return {**made, "model": asked.config.model}

    return url, _lines(url, items(), body, "content", limits)


def _route(index: int, item: Any) -> str:
    keys = without_nulls(item) if isinstance(item, dict) else {}
    found = [route for key, route in ROUTES.items() if key in keys]
    if len(found) != 1:
        kinds = "messages (a chat), prompt (a completion) or input (a response)"
        raise _refusal(f"content.{index}", f"an object with one of {kinds}")
    return found[0]


def _check_prompt(index: int, prompt: Any) -> None:
    if not isinstance(prompt, str):
        raise _refusal(f"content.{PROMPTS}.{index}", "a prompt is a text")


def _check_count(index: int, limits: Limits, holder: str) -> None:
    """Check that a batch may have a request of this index, from 0."""
    if index >= limits.lines:
        raise _refusal(holder, f"more than {limits.lines:,} requests (BATCH_MAX_REQUESTS)")


def _lines(
    url: str,
    items: Iterable[Any],
    body: Callable[[int, Any], dict[str, Any]],
    holder: str,
    limits: Limits,
) -> Iterator[bytes]:
    """Yield the lines of items, none of which the batch would refuse.

    Args:
        url: of all.
        items: of the input.
        body: makes the body of an item, by its index.
        holder: where the items stand.
        limits: of the batch.
    """
    for index, item in enumerate(items):
        place = f"{holder}.{index}"
        _check_count(index, limits, holder)
        try:
            made = body(index, item)
            made = {"custom_id": str(index), "method": "POST", "url": url, "body": made}
            line = json.dumps(made, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except RecursionError:
            raise _refusal(place, "it is nested too deeply") from None
        except UnicodeEncodeError:
            raise _refusal(place, "a text in it has half of a surrogate pair") from None
        except ValueError:
            raise _refusal(place, "a number in it is none that JSON has") from None
        if len(line) > limits.bytes_of_a_line:
            raise _refusal(place, f"more than {limits.bytes_of_a_line:,} bytes (MAX_INPUT_MB)")
        yield line


def _refusal(place: str, message: str) -> InvalidInput:
    return InvalidInput(f"{place}: {message}", param=place)


def _beside_prompts(place: Path, limits: Limits) -> Any:
    """Return the object in a file, with the first prompt in place of all."""
    builder, keys, prompts = ObjectBuilder(), set[str](), 0
    with _opened(place, limits) as opened:
        for prefix, event, value in opened.events():
            is_prompt = prefix == f"{PROMPTS}.item"
            if is_prompt:
                _check_prompt(prompts, value)
                _check_count(prompts, limits, f"content.{PROMPTS}")
                prompts += 1
                # The rest is kept here, and counts as one value.
                opened.go_on()
            if prefix == "" and event == "map_key":
                # Between two lists of prompts any amount of others could stand.
                if value in keys:
                    raise InvalidInput(f"{value!r} stands twice in the object")
                keys.add(value)
            if not is_prompt or prompts == 1:
                builder.event(event, value)
    return builder.value


def _items(place: Path, prefix: str, limits: Limits) -> Iterator[Any]:
    with _opened(place, limits) as opened:
        for item in ijson.items(opened.events(), prefix):
            opened.go_on()
            yield item


class _JSONFile:
    """A JSON file of which only so much is read until a value is complete.

    Args:
        opened: the file.
        limits: of a request, which the value becomes.
    """

    def __init__(self, opened: BinaryIO, limits: Limits) -> None:
        self._opened = opened
        self._limits = limits
        self.go_on()

    def read(self, size: int) -> bytes:
        """Return the next bytes, for ijson."""
        if self._read > self._limits.bytes_of_a_line:
            longest = f"{self._limits.bytes_of_a_line:,} bytes"
            raise InvalidInput(f"a value in it has more than {longest} (MAX_INPUT_MB)")
        found = self._opened.read(size)
        self._read += len(found)
        return found

    def events(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the events of the file with their prefixes, as ijson calls them.

        Raises:
            InvalidInput: a value is nested too deeply, of which ijson takes no notice for long, or
                holds too many others. Numbers may be token ids, of which many fit.
        """
        found: Iterator[tuple[str, str, Any]] = ijson.parse(self._count())
        return found

    def _count(self) -> Iterator[tuple[str, Any]]:
        depth, most = 0, self._limits.values_of_a_line
        for event, value in ijson.basic_parse(self, use_float=True):
            depth += event.startswith("start_") - event.startswith("end_")
            self._numbers += event == "number"
            self._values += event in _VALUES
            if depth > MOST_LEVELS:
                raise InvalidInput("it is nested too deeply")
            if self._numbers > MOST_TOKEN_IDS:
                raise InvalidInput(f"a value in it holds more than {MOST_TOKEN_IDS:,} numbers")
            if self._values > most:
                message = f"more than {most:,} values that are no numbers (MAX_INPUT_VALUES)"
                raise InvalidInput(f"a value in it holds {message}")
            yield event, value

    def go_on(self) -> None:
        """Begin with another value."""
        self._read = self._values = self._numbers = 0


@contextlib.contextmanager
def _opened(place: Path, limits: Limits) -> Iterator[_JSONFile]:
    """Open an input file.

    Raises:
        InvalidInput: there is none, or it is no JSON of the right form.
        VolumeError: the volume fails.
    """
    if not place.is_file():
        raise _refusal(INPUT, "there is no such file")
    try:
        with failures(), place.open("rb") as opened:
            if opened.peek(len(BOM)).startswith(BOM):
                opened.seek(len(BOM))
            yield _JSONFile(opened, limits)
    except InvalidInput as error:
        raise _refusal(INPUT, error.message) from None
    except (ijson.JSONError, ValueError) as broken:
        # Its message quotes the file.
        reason = "it ends too early" if isinstance(broken, ijson.IncompleteJSONError) else "broken"
        raise _refusal(INPUT, f"it is no JSON: {reason}") from None
