"""The raw path: a prompt or a conversation, straight to the engine."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

from worker.chunking import ROOM_BYTES, Piece
from worker.engine import Delta, Engine
from worker.job import RawJob
from worker.routes.answer import Answer, json_size
from worker.routes.dialects import DIALECTS
from worker.settings import Settings

# What makes a delta large.
DETAILS = ("text", "logprobs", "prompt_logprobs", "token_ids")


def answer(job: RawJob, request_id: str, engine: Engine, _: Settings) -> Answer[Delta]:
    dialect = DIALECTS[job.format](job, request_id)

    async def pieces() -> AsyncGenerator[Piece[Delta], None]:
        async with contextlib.aclosing(engine.generate(job, request_id)) as deltas:
            async for delta in deltas:
                for part in _fitting(delta):
                    yield Piece(part, weight=part.tokens, size=_size(part))

    return Answer(stream=job.streamed, pieces=pieces, render=dialect.grow, policy=dialect.policy)


def _size(delta: Delta) -> int:
    return sum(json_size(part) for name in DETAILS if (part := getattr(delta, name)))


def _fitting(delta: Delta) -> Iterator[Delta]:
    """Halve a delta until each part fits a yield; a character and a position stay whole."""
    parts = {name: value for name in DETAILS if (value := getattr(delta, name))}
    if _size(delta) <= ROOM_BYTES or max(map(len, parts.values()), default=0) < 2:
        yield delta
        return
    first = {name: value[: len(value) // 2] for name, value in parts.items()}
    second = {name: value[len(value) // 2 :] for name, value in parts.items()}
    # The second part counts the tokens and tells the end.
    head = replace(delta, tokens=0, finish_reason=None, stop_reason=None, **first)
    yield from _fitting(head)
    yield from _fitting(replace(delta, **second))
