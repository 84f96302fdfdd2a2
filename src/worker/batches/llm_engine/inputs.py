"""The input of LLM Engine's batches: in the request, or a JSON file that is read item by item."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from worker.batches.llm_engine import lines
from worker.batches.llm_engine.models import BatchRequest, Content
from worker.batches.llm_engine.places import INPUT
from worker.batches.llm_engine.texts import Text
from worker.errors import InvalidInput
from worker.job.base import unknown_key
from worker.volume import failures

PROMPTS = "prompts"
# Characters of one prompt or body.
LONGEST = 20_000_000

_V1 = f"an object with {PROMPTS}, max_new_tokens and temperature"
_V2 = "a list of requests' bodies"


def v1(
    asked: BatchRequest, place: Path | None, most: int, priority: int | None = None
) -> Iterator[bytes]:
    """Return the lines of a v1 batch; who iterates gets the mistakes in the prompts.

    Args:
        asked: the request.
        place: its input file; None: the input is in the request.
        most: how many prompts there may be.
        priority: for the scheduler; None: it answers requests in their order.

    Raises:
        InvalidInput: what is beside the prompts is wrong, or there are none.
        VolumeError: the volume fails.
    """
    given = asked.content if place is None else _beside_prompts(place)
    if not isinstance(given, dict):
        raise InvalidInput(f"content: {_V1}", param="content")
    found = given.get(PROMPTS)
    if not isinstance(found, list) or not found:
        message = f"content.{PROMPTS}: a list of at least one text"
        raise InvalidInput(message, param=f"content.{PROMPTS}")
    content = Content.read({key: value for key, value in given.items() if key != PROMPTS})
    prompts = found if place is None else _prompts(place)
    return lines.of_prompts(_bounded(prompts, most), content, asked.config.model, priority)


def v2(
    asked: BatchRequest, place: Path | None, most: int, priority: int | None = None
) -> tuple[str, Iterator[bytes]]:
    """Return the route of a v2 batch, and its lines; who iterates gets the mistakes in them.

    Args:
        asked: the request.
        place: its input file; None: the input is in the request.
        most: how many bodies there may be.
        priority: for the scheduler; None: it answers requests in their order.

    Raises:
        InvalidInput: there is no first body, or it is wrong.
        VolumeError: the volume fails.
    """
    if place is None and not isinstance(asked.content, list):
        message = f"{_V2}; prompts with common parameters go to /v1/llm/batch-completions"
        raise InvalidInput(f"content: {message}", param="content")
    first = next(iter(asked.content if place is None else _bodies(place)), None)
    url = lines.route_of(first)
    bodies = asked.content if place is None else _bodies(place)
    return url, lines.of_bodies(_bounded(bodies, most), url, asked.config.model, priority)


def _bounded(items: Iterable[Any], most: int) -> Iterator[Any]:
    for index, item in enumerate(items):
        if index == most:
            message = f"more than {most:,} requests (BATCH_MAX_REQUESTS)"
            raise InvalidInput(f"content: {message}", param="content")
        yield item


def _beside_prompts(place: Path) -> dict[str, Any]:
    """Return the object in a file, with the first of its prompts only, whatever is behind them."""
    found: dict[str, Any] = {}
    with _text(place) as text:
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


def _prompts(place: Path) -> Iterator[Any]:
    with _text(place) as text:
        for key in text.members():
            if key == PROMPTS:
                yield from text.items()
            else:
                text.value()


def _bodies(place: Path) -> Iterator[Any]:
    with _text(place) as text:
        yield from text.items()
        text.end()


@contextlib.contextmanager
def _text(place: Path) -> Iterator[Text]:
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
            yield Text(opened, LONGEST)
    except InvalidInput as error:
        raise InvalidInput(f"{INPUT}: {error.message}", param=INPUT) from None
