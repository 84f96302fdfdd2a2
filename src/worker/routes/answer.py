"""What a route makes of a job: where the pieces come from, and what a yield of them looks like."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from worker.chunking import ChunkPolicy, Piece

T = TypeVar("T")

# json.dumps with an argument would make another each time.
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """One call of the engine, not yet begun.

    ``pieces`` is called, iterated and closed on the engine's loop. ``render`` makes one yield of
    some pieces' values, ``render_error`` the last yield of a stream that breaks after it began;
    without it the job fails, though its stream had begun. ``beside_error`` are keys that stand
    beside ``error`` in what it fails with. ``policy`` is for answers that are cut
    in a way of their own; ``progress`` says how far an answer has come that is worth telling.
    """

    stream: bool
    pieces: Callable[[], AsyncGenerator[Piece[T], None]]
    render: Callable[[list[T]], Any]
    render_error: Callable[[dict[str, Any]], Any] | None = None
    beside_error: Mapping[str, Any] = field(default_factory=dict)
    policy: ChunkPolicy | None = None
    progress: Callable[[], dict[str, int]] | None = None


def json_size(value: Any) -> int:
    """Count the bytes of a value in the POST that carries it, and of the comma behind it."""
    return len(_encode(value).encode(errors="replace")) + 2
