"""The input of LLM Engine's batches: in the request, or a JSON file that is read item by item."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker.batches.lines import Limits
from worker.batches.llm_engine import lines
from worker.batches.llm_engine.models import BatchRequest, Content
from worker.batches.llm_engine.places import INPUT
from worker.batches.llm_engine.texts import Text
from worker.errors import InvalidInput
from worker.job.base import unknown_key
from worker.volume import failures

PROMPTS = "prompts"

_V1 = f"an object with {PROMPTS}, max_new_tokens and temperature"
_V2 = "a list of requests' bodies"


def v1(
    asked: BatchRequest, place: Path | None, limits: Limits, priority: int | None = None
) -> Iterator[bytes]:
    """Return the lines of a v1 batch; who iterates gets the mistakes in the prompts.

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
    prompts = found if place is None else _prompts(place, limits)
    made = lines.of_prompts(prompts, content, asked.config.model, priority)
    return _bounded(made, limits, f"content.{PROMPTS}")


def v2(
    asked: BatchRequest, place: Path | None, limits: Limits, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v2 batch, and its lines; who iterates gets the mistakes in them.

    Args:
        asked: the request.
        place: its input file; None: the input is in the request.
        limits: of the batch.
        priority: for the scheduler; None: it answers requests in their order.

    Raises:
        InvalidInput: there is no first body, or it is wrong.
        VolumeError: the volume fails.
    """
    if place is None and not isinstance(asked.content, list):
        message = f"{_V2}; prompts with common parameters go to /v1/llm/batch-completions"
        raise InvalidInput(f"content: {message}", param="content")
    first = next(iter(asked.content if place is None else _bodies(place, limits)), None)
    url = lines.route_of(first)
    bodies = asked.content if place is None else _bodies(place, limits)
    made = lines.of_bodies(bodies, url, asked.config.model, priority)
    return url, _bounded(made, limits, "content")


def _bounded(made: Iterator[bytes], limits: Limits, place: str) -> Iterator[bytes]:
    """Yield lines that the batch would not refuse, either."""
    for index, line in enumerate(made):
        if index == limits.lines:
            message = f"more than {limits.lines:,} requests (BATCH_MAX_REQUESTS)"
            raise InvalidInput(f"{place}: {message}", param=place)
        if len(line) > limits.bytes_of_a_line:
            message = f"more than {limits.bytes_of_a_line:,} bytes (MAX_INPUT_MB)"
            raise InvalidInput(f"{place}.{index}: {message}", param=f"{place}.{index}")
        yield line


def _beside_prompts(place: Path, limits: Limits) -> dict[str, Any]:
    """Return the object in a file, with the first of its prompts only, whatever is behind them."""
    found: dict[str, Any] = {}
    with _text(place, limits) as text:
        for key in text.members():
            if key in found:
                raise InvalidInput(f"{key!r} stands twice in the object")
            if key not in {PROMPTS, *Content.model_fields}:
                raise InvalidInput(unknown_key(key, {PROMPTS, *Content.model_fields}))
            if key == PROMPTS and text.next() == "[":
                found[key] = [item for index, item in enumerate(text.items()) if index == 0]
            else:
                found[key] = text.value()
        text.end()
    return found


def _prompts(place: Path, limits: Limits) -> Iterator[Any]:
    with _text(place, limits) as text:
        for key in text.members():
            if key == PROMPTS:
                yield from text.items()
            else:
                text.value()


def _bodies(place: Path, limits: Limits) -> Iterator[Any]:
    with _text(place, limits) as text:
        yield from text.items()
        text.end()


@contextlib.contextmanager
def _text(place: Path, limits: Limits) -> Iterator[Text]:
    """Open an input file.

    Raises:
        InvalidInput: there is none, or it is no JSON of the right form.
        VolumeError: the volume fails.
    """
    if not place.is_file():
        raise InvalidInput(f"{INPUT}: there is no such file", param=INPUT)
    try:
        # A mark of the byte order is passed over.
        with failures(), place.open(encoding="utf-8-sig", newline="") as opened:
            yield Text(opened, limits.bytes_of_a_line)
    except InvalidInput as error:
        raise InvalidInput(f"{INPUT}: {error.message}", param=INPUT) from None
