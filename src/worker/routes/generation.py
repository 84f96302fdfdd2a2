"""Answers with one generation of the engine, for a prompt or a conversation.

Raw jobs and LLM Engine's completion routes return such answers.
"""

import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from worker.chunking import PIECES_LIMIT_BYTES, RESULT_LIMIT_BYTES, ChunkPolicy, Piece
from worker.engine import Delta, Engine
from worker.job import RawJob
from worker.limits.shapes import RAW_SHAPE
from worker.limits.table import RequestToCheck, check_request
from worker.record import Usage
from worker.routes.answer import Answer, json_size
from worker.routes.retries import retry_before_first_piece
from worker.settings import Settings
from worker.validation import SAMPLING_PARAMS

# Fields that are split if a delta is too large for a yield, the fields of a tuple at one index.
SPLIT_FIELDS = (("text",), ("logprobs", "token_ids"), ("prompt_logprobs",))


class AnswerFormatter(Protocol):
    """Formats one answer while it is generated."""

    @property
    def chunk_policy(self) -> ChunkPolicy | None:
        """The policy for chunking, which overrides the job's chunk keys; None if the keys apply."""

    def format_chunk(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return one yield from the deltas since the last call."""

    def format_item(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return a complete answer from all of its deltas, as an item of a list."""


# Makes the formatter of one answer from its job and the request's id.
MakeFormatter = Callable[[RawJob, str], AnswerFormatter]


def make_answer(
    job: RawJob,
    request_id: str,
    engine: Engine,
    settings: Settings,
    make_formatter: MakeFormatter,
    max_piece_bytes: int = PIECES_LIMIT_BYTES,
) -> Answer[Delta]:
    """Return the answer to a raw job: a piece is a delta of a stream, otherwise a whole choice.

    In a stream, a delta of more than ``max_piece_bytes`` becomes several pieces.

    Raises:
        RequestError: The job exceeds a limit.
    """
    max_bytes = math.inf if job.is_streamed else RESULT_LIMIT_BYTES
    check_request(
        RequestToCheck(job.body_to_check, RAW_SHAPE, settings, SAMPLING_PARAMS, max_bytes)
    )
    formatter = make_formatter(job, request_id)
    usage = Usage()

    async def pieces() -> AsyncGenerator[Piece[Delta], None]:
        output_tokens = 0
        async with contextlib.aclosing(engine.generate(job, request_id)) as deltas:
            async for delta in deltas:
                output_tokens += delta.tokens
                usage.prompt_tokens, usage.output_tokens = delta.prompt_tokens, output_tokens
                usage.is_truncated |= is_cut_by_default(job, delta)
                for piece in _split_delta(delta, max_piece_bytes if job.is_streamed else math.inf):
                    yield piece

    return Answer(
        stream=job.is_streamed,
        pieces=partial(retry_before_first_piece, engine, request_id, pieces),
        render=formatter.format_chunk,
        policy=formatter.chunk_policy,
        usage=usage,
    )


def is_cut_by_default(job: RawJob, delta: Delta) -> bool:
    """Return whether a choice ended at the default length because the job has no ``max_tokens``."""
    return delta.finish_reason == "length" and "max_tokens" not in job.sampling_params.vllm_params


def _fields_size(delta: Delta, names: Iterable[str] = tuple(chain(*SPLIT_FIELDS))) -> int:
    return sum(json_size(part) for name in names if (part := getattr(delta, name)))


def _split_delta(delta: Delta, max_bytes: float) -> Iterator[Piece[Delta]]:
    """Yield a delta as pieces of at most ``max_bytes``, halving the largest fields until they fit.

    A single character, or the log probabilities of a single token, are never split.
    """
    size = _fields_size(delta)
    largest = {}
    if size > max_bytes:
        names = max(SPLIT_FIELDS, key=partial(_fields_size, delta))
        largest = {name: part for name in names if (part := getattr(delta, name))}
    middle = max(map(len, largest.values()), default=0) // 2
    if not middle:
        yield Piece(delta, weight=delta.tokens, size=size)
        return
    # The other fields are sent with the second half.
    empty = Delta(delta.index, "", tokens=0, prompt_tokens=delta.prompt_tokens)
    first_half = replace(empty, **{name: part[:middle] for name, part in largest.items()})
    second_half = replace(delta, **{name: part[middle:] for name, part in largest.items()})
    yield from _split_delta(first_half, max_bytes)
    yield from _split_delta(second_half, max_bytes)
