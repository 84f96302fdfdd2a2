"""An answer: where the pieces of it come from, and how yields of them are rendered."""

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from worker.chunking import ONE_BY_ONE, ROOM_BYTES, ChunkPolicy, Piece
from worker.record import Usage

T = TypeVar("T")

# json.dumps with an argument builds a new encoder at every call.
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """One call of the engine, not yet started.

    Args:
        stream: whether it is yielded in chunks; otherwise it is one yield.
        pieces: called, iterated and closed on the engine's loop.
        render: makes one yield of the values of some pieces.
        render_error: makes a yield of an error's body for the reader of a stream that breaks, next
            to the one that fails the job.
        error_keys: keys that stand next to ``error`` in an error's body: ``{"type": "error"}``.
        policy: how the answer is chunked, where the job's chunk keys do not apply.
        by_worker: whether the worker answers by itself, without a slot of the engine.
        progress: returns how many items are done: ``{"done": 3, "total": 200}``. None is reported
            without it.
        usage: the tokens so far, counted by the pieces.
    """

    stream: bool
    pieces: Callable[[], AsyncGenerator[Piece[T], None]]
    render: Callable[[list[T]], Any]
    render_error: Callable[[dict[str, Any]], Any] | None = None
    error_keys: Mapping[str, Any] = field(default_factory=dict)
    policy: ChunkPolicy | None = None
    by_worker: bool = False
    progress: Callable[[], dict[str, float]] | None = None
    usage: Usage = field(default_factory=Usage)


def answer_by_worker(
    answering: Callable[[], Awaitable[Any]],
    *,
    progress: Callable[[], dict[str, float]] | None = None,
    usage: Usage | None = None,
) -> Answer[Any]:
    """Return an answer of one yield, which the worker makes by itself: what is awaited."""

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        yield Piece(await answering(), weight=1, size=0)

    return Answer(
        stream=False,
        pieces=pieces,
        render=lambda values: values[0],
        by_worker=True,
        progress=progress,
        usage=usage or Usage(),
    )


def answer_in_parts(answering: Callable[[], AsyncGenerator[Any, None]]) -> Answer[Any]:
    """Return an answer of a yield for each part, which the worker makes by itself."""

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        async with contextlib.aclosing(answering()) as parts:
            async for part in parts:
                yield Piece(part, weight=1, size=json_size(part))

    return Answer(
        stream=True,
        pieces=pieces,
        render=lambda values: values[0],
        policy=ONE_BY_ONE,
        by_worker=True,
    )


def json_size(value: Any) -> int:
    """Return the bytes of a value in a POST, with the comma behind it."""
    return len(_encode(value).encode(errors="replace")) + 2


def text_parts(text: str) -> Iterator[str]:
    """Cut a text into parts that a yield holds, between characters."""
    if json_size(text) <= ROOM_BYTES:
        yield text
        return
    middle = len(text) // 2
    yield from text_parts(text[:middle])
    yield from text_parts(text[middle:])
