"""Answers that the engine generates without vLLM's server: to a prompt, or to a list of prompts.

Raw jobs and LLM Engine's completion routes return such answers. Each item of a list is a separate
request, and many run concurrently.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from worker.chunking import ONE_BY_ONE, PIECES_LIMIT_BYTES, RESULT_LIMIT_BYTES, ChunkPolicy, Piece
from worker.engine import Delta, Engine
from worker.errors import (
    AnswerTooLarge,
    EngineDead,
    EngineSuspended,
    WorkerError,
    hide_defects,
)
from worker.job import PromptListJob, RawJob
from worker.limits.inputs import RAW_SHAPE, check_request
from worker.progress import Progress
from worker.record import Usage
from worker.routes.answer import Answer, json_size, retry_before_first_piece
from worker.settings import Settings
from worker.validation import SAMPLING_PARAMS

# Fields that are split if a delta is too large for a yield, the fields of a tuple at one index.
SPLIT_FIELDS = (("text",), ("logprobs", "token_ids"), ("prompt_logprobs",))

# Minimum number of prompts in a list that reports its progress by default.
MIN_ITEMS_FOR_PROGRESS = 100

# Policy that fills a yield with as many results as fit.
FULL_CHUNKS = ChunkPolicy(largest=10**9, smallest=10**9, growth=1, max_delay=0)

# The index of an item in the list, and its result.
IndexedResult = tuple[int, dict[str, Any]]


class AnswerFormatter(Protocol):
    """Formats one answer while it is generated."""

    @property
    def chunk_policy(self) -> ChunkPolicy | None:
        """The policy for chunking, which overrides the job's chunk keys; None if the keys apply."""

    def format_chunk(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return one yield from the deltas since the last call."""

    def format_item(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return a complete answer from all of its deltas, as an item of a list."""


class RawFormatter:
    """Formats an answer in the worker's own format: as ``n`` choices of tokens, and the usage.

    A yield contains the new tokens and the usage so far. The last yield also contains the finish
    reasons and the request's id.
    """

    chunk_policy: ChunkPolicy | None = None

    def __init__(self, job: RawJob, request_id: str) -> None:
        self._n = job.sampling_params.n
        self._request_id = request_id
        self._prompt_tokens = self._output_tokens = 0
        self._finish_reasons: dict[int, dict[str, Any]] = {}

    def format_chunk(self, deltas: list[Delta]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._n)]
        chunk: dict[str, Any] = {"choices": choices}
        for delta in deltas:
            choice = choices[delta.index]
            choice["tokens"].append(delta.text)
            self._prompt_tokens = delta.prompt_tokens
            self._output_tokens += delta.tokens
            for target, key in (
                (choice, "logprobs"),
                (choice, "token_ids"),
                (chunk, "prompt_logprobs"),
            ):
                if (values := getattr(delta, key)) is not None:
                    target.setdefault(key, []).extend(values)
            if delta.finish_reason:
                self._finish_reasons[delta.index] = {
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
        chunk["usage"] = {"input": self._prompt_tokens, "output": self._output_tokens}
        if deltas and len(self._finish_reasons) == self._n:
            for index, reasons in self._finish_reasons.items():
                choices[index].update(reasons)
            chunk["request_id"] = self._request_id
        return chunk

    def format_item(self, deltas: list[Delta]) -> dict[str, Any]:
        return self.format_chunk(deltas)


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
    """
    max_bytes = math.inf if job.is_streamed else RESULT_LIMIT_BYTES
    check_request(job.body_to_check, RAW_SHAPE, settings, SAMPLING_PARAMS, max_bytes)
    formatter = make_formatter(job, request_id)
    usage = Usage()

    async def pieces() -> AsyncGenerator[Piece[Delta], None]:
        output_tokens = 0
        async with contextlib.aclosing(engine.generate(job, request_id)) as deltas:
            async for delta in deltas:
                output_tokens += delta.tokens
                usage.prompt_tokens, usage.output_tokens = delta.prompt_tokens, output_tokens
                usage.is_truncated |= _is_cut_by_default(job, delta)
                for piece in _split_delta(delta, max_piece_bytes if job.is_streamed else math.inf):
                    yield piece

    return Answer(
        stream=job.is_streamed,
        pieces=partial(retry_before_first_piece, engine, request_id, pieces),
        render=formatter.format_chunk,
        policy=formatter.chunk_policy,
        usage=usage,
    )


def _is_cut_by_default(job: RawJob, delta: Delta) -> bool:
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


class ChoiceLimiter:
    """Limits the number of concurrent choices; slots are acquired in the order of the calls."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free_slots = asyncio.Semaphore(total)
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def acquire(self, choices: int) -> AsyncGenerator[None, None]:
        """Acquire one slot for each choice, at most all slots, and release them after the block."""
        acquired = 0
        try:
            # Only one item at a time acquires slots. Otherwise, several could each hold some slots
            # and wait forever for the others.
            async with self._lock:
                while acquired < min(choices, self.total):
                    await self._free_slots.acquire()
                    acquired += 1
            yield
        finally:
            for _ in range(acquired):
                self._free_slots.release()


def make_list_answer(
    job: PromptListJob,
    request_id: str,
    engine: Engine,
    settings: Settings,
    make_formatter: MakeFormatter,
) -> Answer[IndexedResult]:
    """Return the answer to a list of prompts: a piece is the result of one item, or its error.

    In a stream, results are yielded one at a time, as soon as they are ready. Otherwise they are in
    the list's order, and a yield contains as many as fit.
    """
    check_request(job.shared.body_to_check, RAW_SHAPE, settings, SAMPLING_PARAMS)
    total = len(job.items)
    progress = Progress(done=0, total=total)
    usage = Usage()

    async def generate_item(item: RawJob, id: str) -> dict[str, Any]:
        body = item.body_to_check
        if item.sampling_params is job.shared.sampling_params:
            # Shared parameters have been checked above.
            body = {key: value for key, value in body.items() if key in RAW_SHAPE.text_keys}
        check_request(body, RAW_SHAPE, settings, SAMPLING_PARAMS)
        formatter = make_formatter(item, id)
        generate = partial(engine.generate, item, id, in_list=True)
        async with contextlib.aclosing(retry_before_first_piece(engine, id, generate)) as deltas:
            choices = [delta async for delta in deltas]
        usage.add(choices[-1].prompt_tokens, sum(choice.tokens for choice in choices))
        usage.is_truncated |= any(_is_cut_by_default(item, choice) for choice in choices)
        return formatter.format_item(choices)

    async def answer_item(index: int, slots: ChoiceLimiter) -> Piece[IndexedResult]:
        item, id = job.items[index], f"{request_id}-{index}"
        async with slots.acquire(
            item.sampling_params.num_candidates if isinstance(item, RawJob) else 1
        ):
            try:
                with hide_defects(id):
                    if isinstance(item, WorkerError):
                        raise item
                    result = await generate_item(item, id)
            except (EngineSuspended, EngineDead):
                # The whole job fails, since another worker can answer all of it.
                raise
            except WorkerError as error:
                result = error.body(id)
        if (size := json_size(result)) > PIECES_LIMIT_BYTES:
            message = (
                f"This result has {size:,} bytes and a yield has at most {PIECES_LIMIT_BYTES:,}: "
                "ask for fewer tokens or log probabilities."
            )
            result = AnswerTooLarge(message).body(id)
            size = json_size(result)
        progress.update(done=progress.values["done"] + 1)
        return Piece((index, result), weight=1, size=size)

    async def pieces() -> AsyncGenerator[Piece[IndexedResult], None]:
        await engine.check_job(job.shared)
        # Twice the engine's slots keep it busy. More would wait in its queue, ahead of other jobs.
        slots = ChoiceLimiter(2 * engine.slots)
        tasks = [asyncio.create_task(answer_item(index, slots)) for index in range(total)]
        try:
            for task in asyncio.as_completed(tasks) if job.stream else tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    reports_progress = total >= MIN_ITEMS_FOR_PROGRESS if job.use_tqdm is None else job.use_tqdm
    return Answer(
        stream=True,
        pieces=partial(retry_before_first_piece, engine, request_id, pieces),
        render=_render_item if job.stream else _render_outputs,
        policy=ONE_BY_ONE if job.stream else FULL_CHUNKS,
        usage=usage,
        progress=progress if reports_progress else None,
    )


def _render_item(results: list[IndexedResult]) -> dict[str, Any]:
    if not results:
        return {}
    ((index, result),) = results
    return {"index": index, "result": result}


def _render_outputs(results: list[IndexedResult]) -> dict[str, Any]:
    """Return one yield of results in order, with the index of the first one unless it is 0."""
    index = results[0][0] if results else 0
    return {**({"index": index} if index else {}), "outputs": [result for _, result in results]}
