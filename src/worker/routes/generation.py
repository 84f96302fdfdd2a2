"""One generation: a prompt or a conversation for the engine itself.

It answers the raw path, and LLM Engine's routes for completions.
"""

import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from worker.chunking import ROOM_BYTES, ChunkPolicy, Piece
from worker.engine import Delta, Engine
from worker.job import RawJob
from worker.limits.shapes import RAW
from worker.limits.table import Checked, check
from worker.record import Usage
from worker.routes.again import unless_begun
from worker.routes.answer import Answer, json_size
from worker.settings import Settings
from worker.validation import SAMPLING

# Fields that are split when a delta is too large for one yield: those in one tuple at the same
# index.
DETAILS = (("text",), ("logprobs", "token_ids"), ("prompt_logprobs",))


class Form(Protocol):
    """One answer while it grows."""

    @property
    def policy(self) -> ChunkPolicy | None:
        """How the answer is chunked, where the job's chunk keys do not apply."""

    def grow(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return one yield: the output that is new since the last one."""

    def item(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return a whole answer as an item of a list."""


# Makes the form of one answer, of its job and the request's id.
MakeForm = Callable[[RawJob, str], Form]


def answer(
    job: RawJob,
    request_id: str,
    engine: Engine,
    settings: Settings,
    form: MakeForm,
    room: int = ROOM_BYTES,
) -> Answer[Delta]:
    """Return the answer to a raw job: a piece is a token in a stream, otherwise a whole choice.

    Args:
        job: the raw job.
        request_id: the job's id.
        engine: answers it.
        settings: the operator's.
        form: how it is rendered.
        room: bytes that a piece of a stream may have; a larger delta is several pieces.

    Raises:
        RequestError: it asks for too much.
    """
    check(Checked(job.body, RAW, settings, SAMPLING, math.inf if job.streamed else ROOM_BYTES))
    rendered = form(job, request_id)
    usage = Usage()

    async def pieces() -> AsyncGenerator[Piece[Delta], None]:
        output_tokens = 0
        async with contextlib.aclosing(engine.generate(job, request_id)) as deltas:
            async for delta in deltas:
                output_tokens += delta.tokens
                usage.prompt_tokens, usage.output_tokens = delta.prompt_tokens, output_tokens
                usage.cut |= cut_by_default(job, delta)
                for piece in _pieces(delta, room if job.streamed else math.inf):
                    yield piece

    return Answer(
        stream=job.streamed,
        pieces=partial(unless_begun, engine, request_id, pieces),
        render=rendered.grow,
        policy=rendered.policy,
        usage=usage,
    )


def cut_by_default(job: RawJob, delta: Delta) -> bool:
    """Whether a choice ended here because the job named no ``max_tokens``."""
    return delta.finish_reason == "length" and "max_tokens" not in job.sampling_params.vllm


def _size(delta: Delta, names: Iterable[str] = tuple(chain(*DETAILS))) -> int:
    return sum(json_size(part) for name in names if (part := getattr(delta, name)))


def _pieces(delta: Delta, room: float) -> Iterator[Piece[Delta]]:
    """Halve the largest fields until every part fits ``room``, in bytes.

    A character or a token's log probabilities are never split.
    """
    size = _size(delta)
    largest = {}
    if size > room:
        names = max(DETAILS, key=partial(_size, delta))
        largest = {name: part for name in names if (part := getattr(delta, name))}
    half = max(map(len, largest.values()), default=0) // 2
    if not half:
        yield Piece(delta, weight=delta.tokens, size=size)
        return
    # The other fields go with the second half.
    empty = Delta(delta.index, "", tokens=0, prompt_tokens=delta.prompt_tokens)
    first = replace(empty, **{name: part[:half] for name, part in largest.items()})
    second = replace(delta, **{name: part[half:] for name, part in largest.items()})
    yield from _pieces(first, room)
    yield from _pieces(second, room)
