"""Lists of prompts: every item is a request of its own, and many run at once."""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from worker.chunking import ONE_BY_ONE, ROOM_BYTES, ChunkPolicy, Piece
from worker.engine import Engine
from worker.errors import (
    AnswerTooLarge,
    EngineAside,
    EngineDead,
    RequestError,
    WorkerError,
    defects_hidden,
)
from worker.job import ListJob, RawJob
from worker.limits.shapes import RAW
from worker.limits.table import Checked, check
from worker.limits.work import MOST_IN_LISTS, logprobs_at_once
from worker.record import Usage
from worker.routes.again import unless_begun
from worker.routes.answer import Answer, json_size
from worker.routes.generation import MakeForm, cut_by_default
from worker.settings import Settings
from worker.validation import SAMPLING

# Lists of so many prompts or more report their progress by default.
LONG = 100

# As many results as one yield has room for.
FULL = ChunkPolicy(largest=10**9, smallest=10**9, growth=1, max_delay=0)

# An item's index in the list, and its result.
Result = tuple[int, dict[str, Any]]


class Room:
    """Room for so many choices at once, given in the order in which it was asked for."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = asyncio.Semaphore(places)
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def taken(self, choices: int) -> AsyncGenerator[None, None]:
        """Wait for room for some choices, and hold it; if there never is enough, all of it."""
        held = 0
        try:
            # One at a time, or several could each hold a part and wait for the rest.
            async with self._turn:
                while held < min(choices, self.places):
                    await self._free.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._free.release()


def answer(
    job: ListJob, request_id: str, engine: Engine, settings: Settings, form: MakeForm
) -> Answer[Result]:
    """Return the answer to a list: a piece is the result of one item, or its error.

    In a stream results come as they are ready, one a yield; otherwise in the list's order, as many
    in one yield as it has room for.

    Raises:
        RequestError: what all items share asks for too much.
    """
    check(Checked(job.shared.body, RAW, settings, SAMPLING))
    total, done = len(job.items), 0
    usage = Usage()

    async def result(index: int, room: Room) -> Piece[Result]:
        nonlocal done
        item = job.items[index]
        async with room.taken(_places(item, room.places)):
            checked = _checked(item, job.shared, settings)
            found, size = await _result(checked, f"{request_id}-{index}", engine, usage, form)
        done += 1
        return Piece((index, found), weight=1, size=size)

    async def pieces() -> AsyncGenerator[Piece[Result], None]:
        await engine.check(job.shared)
        # Enough to keep the engine full: more would wait in its queue, in front of other jobs.
        room = Room(2 * engine.slots)
        tasks = [asyncio.create_task(result(index, room)) for index in range(total)]
        try:
            for task in asyncio.as_completed(tasks) if job.stream else tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    reports_progress = total >= LONG if job.use_tqdm is None else job.use_tqdm
    return Answer(
        stream=True,
        pieces=partial(unless_begun, engine, request_id, pieces),
        render=_item if job.stream else _outputs,
        policy=ONE_BY_ONE if job.stream else FULL,
        usage=usage,
        progress=(lambda: {"done": done, "total": total}) if reports_progress else None,
    )


def _places(item: RawJob | WorkerError, all_places: int) -> int:
    """Return the places for an item's choices, or for its log probabilities if they need more."""
    if not isinstance(item, RawJob):
        return 1
    logprobs = logprobs_at_once(item.sampling_params.body)
    return max(item.sampling_params.width, math.ceil(all_places * logprobs / MOST_IN_LISTS))


def _checked(
    item: RawJob | WorkerError, shared: RawJob, settings: Settings
) -> RawJob | WorkerError:
    """Return an item, or its refusal if what is its own asks for too much."""
    if not isinstance(item, RawJob):
        return item
    body = item.body
    if item.sampling_params is shared.sampling_params:
        body = {key: value for key, value in body.items() if key in RAW.texts}
    try:
        check(Checked(body, RAW, settings, SAMPLING))
    except RequestError as refused:
        return refused
    return item


async def _result(
    item: RawJob | WorkerError, request_id: str, engine: Engine, usage: Usage, form: MakeForm
) -> tuple[dict[str, Any], int]:
    """Return the result of one item, or its error, with its size in bytes as JSON.

    Raises:
        EngineAside, EngineDead: the whole job fails, since another worker can answer all of it.
    """
    try:
        with defects_hidden(request_id):
            found = await _answer(item, request_id, engine, usage, form)
    except (EngineAside, EngineDead):
        raise
    except WorkerError as error:
        found = error.body(request_id)
    if (size := json_size(found)) > ROOM_BYTES:
        message = (
            f"This result has {size:,} bytes and one yield holds {ROOM_BYTES:,}: "
            "ask for fewer tokens or log probabilities."
        )
        found = AnswerTooLarge(message).body(request_id)
        size = json_size(found)
    return found, size


async def _answer(
    item: RawJob | WorkerError, request_id: str, engine: Engine, usage: Usage, form: MakeForm
) -> dict[str, Any]:
    if isinstance(item, WorkerError):
        raise item
    rendered = form(item, request_id)
    generate = partial(engine.generate, item, request_id, in_list=True)
    generated = unless_begun(engine, request_id, generate)
    async with contextlib.aclosing(generated) as deltas:
        choices = [delta async for delta in deltas]
    usage.add(choices[-1].prompt_tokens, sum(choice.tokens for choice in choices))
    usage.cut |= any(cut_by_default(item, choice) for choice in choices)
    return rendered.item(choices)


def _item(results: list[Result]) -> dict[str, Any]:
    ((index, found),) = results
    return {"index": index, "result": found}


def _outputs(results: list[Result]) -> dict[str, Any]:
    """Return one yield of results in order; every one but the first has the index it begins at."""
    first = results[0][0]
    return {**({"index": first} if first else {}), "outputs": [found for _, found in results]}
