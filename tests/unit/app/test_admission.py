"""A worker that is full refuses further jobs at once; a job that ends in any way makes room."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from support.engine.scripted import (
    HANG,
    ScriptedEngine,
    chat,
    failure,
    raw,
    settings,
    tokens,
    until,
    worker,
)

from worker.app import Worker
from worker.concurrency import most_inside
from worker.errors import RefusedByEngine

MOST = most_inside(jobs=1, slots=1)
HANGING = (*tokens("a", finish=None), HANG)
SHORT = tuple(tokens("a", "b"))
Yields = AsyncGenerator[Any, None]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        engine.slots = 1
        yield engine


@pytest.fixture
def full(engine: ScriptedEngine) -> Worker:
    """A worker that is full once it has as many jobs as ``MOST``."""
    return worker(engine, MAX_CONCURRENCY="1")


async def begin(full: Worker, name: str, payload: dict[str, Any]) -> Yields:
    """Have a job answered up to its first yield."""
    yields = full.handle({"id": name, "input": payload})
    await anext(yields)
    return yields


async def ask(full: Worker, payload: dict[str, Any]) -> list[Any]:
    return [chunk async for chunk in full.handle({"id": "asked", "input": payload})]


async def is_full(engine: ScriptedEngine, full: Worker, payload: dict[str, Any]) -> bool:
    """Return whether a job is refused."""
    # Ends if it is not refused.
    engine.script = SHORT
    error = failure(await ask(full, payload))
    assert "Send the request again" in error["message"]
    return (error["code"], error["retryable"]) == (503, True)


@pytest.mark.parametrize(
    "payload",
    [
        raw(stream=True),
        raw(stream=False),
        chat(stream=True),
        chat(stream=False),
        {"prompts": ["Hi", "Hello"]},
        {"route": "/v1/messages", "body": {"messages": []}},
    ],
    ids=["raw-stream", "raw", "openai-stream", "openai", "list", "anthropic"],
)
async def test_a_job_beyond_the_most_is_refused_and_does_not_reach_the_engine(
    engine: ScriptedEngine, full: Worker, payload: dict[str, Any]
) -> None:
    engine.script = HANGING
    running = [await begin(full, f"job-{place}", raw(stream=True)) for place in range(MOST)]
    assert await is_full(engine, full, payload)
    assert len(engine.asked) == MOST
    for yields in running:
        await yields.aclose()


@pytest.mark.parametrize("route", ["/health", "/metrics", "/v1/models", "/openapi.json", "/chat"])
async def test_what_the_worker_answers_by_itself_is_never_refused(
    engine: ScriptedEngine, full: Worker, route: str
) -> None:
    engine.script = HANGING
    running = [await begin(full, f"job-{place}", raw(stream=True)) for place in range(MOST)]
    (answered,) = await ask(full, {"route": route})
    assert "error" not in answered
    await running[0].aclose()
    engine.script = SHORT
    assert "error" not in (await ask(full, raw(stream=False)))[-1], "it has left no place taken"
    for yields in running:
        await yields.aclose()


async def test_a_job_that_is_no_job_takes_no_place(engine: ScriptedEngine, full: Worker) -> None:
    engine.script = SHORT
    for _ in range(MOST + 1):
        assert failure(await ask(full, {"prompt": 1}))["code"] == 400
    assert "error" not in (await ask(full, raw(stream=False)))[-1]


async def finish(engine: ScriptedEngine, full: Worker, stream: bool) -> None:
    engine.script = SHORT
    assert "error" not in (await ask(full, raw(stream=stream)))[-1]


async def fail(engine: ScriptedEngine, full: Worker, stream: bool) -> None:
    engine.script = (*tokens("a", finish=None), RefusedByEngine("no", status=400))
    assert failure(await ask(full, raw(stream=stream)))["code"] == 400


async def close(engine: ScriptedEngine, full: Worker, stream: bool) -> None:
    engine.script = HANGING if stream else SHORT
    yields = await begin(full, "ends", raw(stream=stream))
    assert await is_full(engine, full, raw(stream=False))
    await yields.aclose()


async def cancel(engine: ScriptedEngine, full: Worker, stream: bool) -> None:
    """Cancel a job's task in its post, or before it; the generator is kept and not closed."""
    engine.script = HANGING
    yields = full.handle({"id": "ends", "input": raw(stream=stream)})
    posting = asyncio.Event()

    async def run() -> None:
        await anext(yields)
        posting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run())
    assert await until(lambda: "ends" in engine.generating)
    if stream:
        await posting.wait()
    assert await is_full(engine, full, raw(stream=False))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await finish(engine, full, stream)
    await yields.aclose()  # only now


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("end", [finish, fail, close, cancel])
async def test_a_job_that_ends_makes_room_for_one_more(
    engine: ScriptedEngine,
    full: Worker,
    end: Callable[[ScriptedEngine, Worker, bool], Awaitable[None]],
    stream: bool,
) -> None:
    engine.script = HANGING
    running = [await begin(full, f"job-{place}", raw(stream=True)) for place in range(MOST - 1)]
    # More often than there are places, so that one that stays taken is missed.
    for _ in range(MOST + 1):
        await end(engine, full, stream)
    engine.script = HANGING
    running.append(await begin(full, "next", raw(stream=True)))
    assert await is_full(engine, full, raw(stream=True))
    for yields in running:
        await yields.aclose()


@pytest.mark.parametrize(("wanted", "most"), [("auto", 16), ("5", 16), ("20", 20)])
async def test_the_most_follow_from_the_setting_and_the_engines_slots(
    engine: ScriptedEngine, wanted: str, most: int
) -> None:
    engine.slots, engine.script = 8, HANGING
    full = Worker(engine.engines, settings(MAX_CONCURRENCY=wanted))
    running = [await begin(full, f"job-{place}", raw(stream=True)) for place in range(most)]
    assert await is_full(engine, full, raw(stream=True))
    for yields in running:
        await yields.aclose()
