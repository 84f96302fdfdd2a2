"""Answers: the source of their pieces, and how their yields are rendered."""

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from worker.chunking import ONE_BY_ONE, PIECES_LIMIT_BYTES, ChunkPolicy, Piece
from worker.record import Usage

T = TypeVar("T")

# ``json.dumps`` with an argument creates a new encoder on each call.
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer to one job, which is not started until its pieces are iterated.

    Args:
        stream: Whether the answer is yielded in chunks; otherwise it is one yield.
        pieces: Returns the pieces. It is called, iterated and closed on the engine's loop.
        render: Makes one yield from the values of some pieces.
        render_error: Makes a yield from the body of an error, for the reader of a stream that
            breaks. It precedes the error that fails the job.
        error_keys: Keys next to ``error`` in the body of an error: ``{"type": "error"}``.
        policy: How the answer is chunked, if the job's chunk keys do not apply.
        is_by_worker: Whether the worker answers by itself, without a slot of the engine.
        progress: Returns the number of finished items: ``{"done": 3, "total": 200}``. No progress
            is reported without this function.
        usage: The tokens so far, counted by the pieces.
    """

    stream: bool
    pieces: Callable[[], AsyncGenerator[Piece[T], None]]
    render: Callable[[list[T]], Any]
    render_error: Callable[[dict[str, Any]], Any] | None = None
    error_keys: Mapping[str, Any] = field(default_factory=dict)
    policy: ChunkPolicy | None = None
    is_by_worker: bool = False
    progress: Callable[[], dict[str, float]] | None = None
    usage: Usage = field(default_factory=Usage)


def answer_by_worker(
    make_result: Callable[[], Awaitable[Any]],
    *,
    progress: Callable[[], dict[str, float]] | None = None,
    usage: Usage | None = None,
) -> Answer[Any]:
    """Return an answer of one yield, the awaited result, which needs no slot of the engine."""

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        yield Piece(await make_result(), weight=1, size=0)

    return Answer(
        stream=False,
        pieces=pieces,
        render=lambda values: values[0],
        is_by_worker=True,
        progress=progress,
        usage=usage or Usage(),
    )


def answer_in_parts(make_parts: Callable[[], AsyncGenerator[Any, None]]) -> Answer[Any]:
    """Return an answer with one yield for each part, which needs no slot of the engine."""

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        async with contextlib.aclosing(make_parts()) as parts:
            async for part in parts:
                yield Piece(part, weight=1, size=json_size(part))

    return Answer(
        stream=True,
        pieces=pieces,
        render=lambda values: values[0],
        policy=ONE_BY_ONE,
        is_by_worker=True,
    )


def json_size(value: Any) -> int:
    """Return the bytes of a value in the JSON of a POST, including the comma after it."""
    return len(_encode(value).encode(errors="replace")) + 2


def split_text(text: str) -> Iterator[str]:
    """Split a text between characters into parts that fit a yield."""
    if json_size(text) <= PIECES_LIMIT_BYTES:
        yield text
        return
    middle = len(text) // 2
    yield from split_text(text[:middle])
    yield from split_text(text[middle:])
