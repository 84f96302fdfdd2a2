"""Answers to jobs: the source of their pieces, and how yields are rendered from the pieces."""

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from worker.chunking import ONE_BY_ONE, ChunkPolicy, Piece
from worker.engine import Engine
from worker.errors import EngineDead
from worker.job import Job
from worker.progress import Progress
from worker.record import EngineUse, Usage, engine_use
from worker.settings import Settings

T = TypeVar("T")


class Slot(Enum):
    """The slot of a worker that an answer needs, of a limited number."""

    ENGINE = auto()  # the engine computes it
    WORKER = auto()  # the worker answers by itself
    FILE = auto()  # the worker answers by itself, with the content of a file


# ``json.dumps`` with an argument creates a new encoder on each call.
_encode_json = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer to one job, which is not started until its pieces are iterated.

    Args:
        pieces: Function that returns the pieces. The function is called, and its generator is
            iterated and closed, on the engine's event loop.
        render: Function that makes one yield from the values of a chunk's pieces.
        render_error: Function that makes the last yield of a stream that fails after its first
            yield, from the body of the error. The job then fails with this error. None if clients
            do not read errors from the stream.
        render_receipt: Function that makes the last events of a stream of events that ends with a
            receipt, or without one (None). It is called if the job requests a receipt. None if a
            yield is an object, to which the receipt is added.
        policy: Policy for chunking, which overrides the job's chunk keys; None if the keys apply.
        merges_outputs: Whether the engine's outputs that a chunk has become one piece.
        slot: The slot that the answer needs; None for long work, and for answers to probes.
        progress: Progress that is updated while the pieces are iterated; None to report none.
        usage: The token counts so far, which are updated while the pieces are iterated.
    """

    stream: bool
    pieces: Callable[[], AsyncGenerator[Piece[T], None]]
    render: Callable[[list[T]], Any]
    render_error: Callable[[dict[str, Any]], Any] | None = None
    render_receipt: Callable[[dict[str, Any] | None], Any] | None = None
    policy: ChunkPolicy | None = None
    merges_outputs: bool = False
    slot: Slot | None = Slot.ENGINE
    progress: Progress | None = None
    usage: Usage = field(default_factory=Usage)

    def add_receipt(self, yields: list[Any], receipt: dict[str, Any] | None) -> list[Any]:
        """Return the last yields of an answer, perhaps none, with its receipt in the last one."""
        if self.render_receipt:
            events = self.render_receipt(receipt)
            return [*yields[:-1], yields[-1] + events] if yields else [events]
        if receipt is None:
            return yields
        *others, last = yields or [self.render([])]
        return [*others, {**last, "receipt": receipt}]


def chunk_policy(job: Job, settings: Settings) -> ChunkPolicy:
    delay_ms = job.max_batch_delay_ms
    return ChunkPolicy(
        largest=job.max_batch_size or settings.default_batch_size,
        smallest=job.min_batch_size or settings.default_min_batch_size,
        growth=job.batch_size_growth_factor or settings.default_batch_size_growth_factor,
        max_delay=(settings.default_batch_max_delay_ms if delay_ms is None else delay_ms) / 1000,
    )


def answer_by_worker(
    make_result: Callable[[], Awaitable[Any]],
    *,
    slot: Slot | None = Slot.WORKER,
    progress: Progress | None = None,
    usage: Usage | None = None,
) -> Answer[Any]:
    """Return an answer of one yield, the result of ``make_result``."""

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        yield Piece(await make_result(), weight=1, size=0)

    return Answer(
        stream=False,
        pieces=pieces,
        render=lambda values: values[0],
        slot=slot,
        progress=progress,
        usage=usage or Usage(),
    )


def answer_with_file(make_parts: Callable[[], AsyncGenerator[Any, None]]) -> Answer[Any]:
    """Return an answer with the content of a file, one yield for each part."""

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        async with contextlib.aclosing(make_parts()) as parts:
            async for part in parts:
                yield Piece(part, weight=1, size=json_size(part))

    return Answer(
        stream=True,
        pieces=pieces,
        render=lambda values: values[0],
        policy=ONE_BY_ONE,
        slot=Slot.FILE,
    )


async def retry_before_first_piece(
    engine: Engine, request_id: str, answer: Callable[[], AsyncGenerator[T, None]]
) -> AsyncGenerator[T, None]:
    """Yield an answer's pieces; if the engine dies before the first one, restart the answer."""
    while True:
        has_started = False
        await engine.wait_until_resumed()
        try:
            async with contextlib.aclosing(answer()) as pieces:
                async for piece in pieces:
                    has_started = True
                    yield piece
        except EngineDead:
            if has_started:
                raise
            # The dead engine's requests don't end by themselves.
            engine_use.get(EngineUse()).end_requests()
            await engine.wait_for_recovery(request_id)
        else:
            return


def json_size(value: Any) -> int:
    """Return the size of a value as JSON in bytes, including the comma and space after it."""
    return len(_encode_json(value).encode(errors="replace")) + 2
