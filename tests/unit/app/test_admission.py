"""A worker that is full refuses further jobs at once; a job that ends in any way makes room."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.engine.answers import Consumer, every_form
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, worker
from support.engine.yields import failure
from support.processes.background import eventually

from worker.app import Worker
from worker.errors import RefusedByEngine
from worker.process.concurrency import jobs_at_once, most_inside

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
def small_worker(engine: ScriptedEngine) -> Worker:
    """A worker that is full once it has as many jobs as ``MOST``."""
    return worker(engine, MAX_CONCURRENCY="1")


async def begin(worker: Worker, name: str, payload: dict[str, Any]) -> Yields:
    """Have a job answered up to its first yield."""
    yields = worker.handle({"id": name, "input": payload})
    await anext(yields)
    return yields


@asynccontextmanager
async def running(
    engine: ScriptedEngine, worker: Worker, count: int
) -> AsyncIterator[list[Yields]]:
    """Have so many jobs run; further ones are short."""
    engine.script = HANGING
    jobs = [await begin(worker, f"job-{place}", raw(stream=True)) for place in range(count)]
    engine.script = SHORT
    yield jobs
    for yields in jobs:
        await yields.aclose()


async def ask(worker: Worker, payload: dict[str, Any]) -> list[Any]:
    return [chunk async for chunk in worker.handle({"id": "asked", "input": payload})]


async def is_refused(worker: Worker, payload: dict[str, Any]) -> bool:
    error = failure(await ask(worker, payload))
    assert "Send the request again" in error["message"]
    return (error["code"], error["retryable"]) == (503, True)


async def test_jobs_beyond_the_most_are_refused_and_do_not_reach_the_engine(
    engine: ScriptedEngine, small_worker: Worker
) -> None:
    async with running(engine, small_worker, MOST):
        for stream in (True, False):
            assert await is_refused(small_worker, raw(stream=stream))
            assert await is_refused(small_worker, chat(stream=stream))
        assert await is_refused(small_worker, {"prompts": ["Hi", "Hello"]})
        assert await is_refused(small_worker, {"route": "/v1/messages", "body": {"messages": []}})
        assert len(engine.asked) == MOST


async def test_what_the_worker_answers_by_itself_is_never_refused_and_takes_no_place(
    engine: ScriptedEngine, small_worker: Worker
) -> None:
    async with running(engine, small_worker, MOST) as jobs:
        for route in ("/health", "/metrics", "/v1/models", "/openapi.json", "/chat"):
            assert "error" not in (await ask(small_worker, {"route": route}))[0]
        await jobs[0].aclose()
        assert "error" not in (await ask(small_worker, raw(stream=False)))[-1]


async def refuse(_: ScriptedEngine, worker: Worker, stream: bool) -> None:
    assert failure(await ask(worker, {"prompt": 1, "stream": stream}))["code"] == 400


async def finish(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    engine.script = SHORT
    assert "error" not in (await ask(worker, raw(stream=stream)))[-1]


async def fail(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    engine.script = (*tokens("a", finish=None), RefusedByEngine("no", status=400))
    assert failure(await ask(worker, raw(stream=stream)))["code"] == 400


async def close(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    engine.script = HANGING if stream else SHORT
    yields = await begin(worker, "ends", raw(stream=stream))
    assert await is_refused(worker, raw(stream=False))
    await yields.aclose()


async def cancel(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    """Cancel a job's task in its post, or before it; the generator is kept and not closed."""
    engine.script = HANGING
    sdk = Consumer(worker, raw(stream=stream), "ends")
    await eventually(lambda: "ends" in engine.generating and (not stream or bool(sdk.yields)))
    assert await is_refused(worker, raw(stream=False))
    await sdk.cancel()
    await finish(engine, worker, stream)
    await sdk.generator.aclose()  # only now


@every_form
@pytest.mark.parametrize("end", [refuse, finish, fail, close, cancel])
async def test_a_job_that_ends_makes_room_for_one_more(
    engine: ScriptedEngine,
    small_worker: Worker,
    end: Callable[[ScriptedEngine, Worker, bool], Awaitable[None]],
    stream: bool,
) -> None:
    async with running(engine, small_worker, MOST - 1) as jobs:
        # More often than there are places, so that one that stays taken is missed.
        for _ in range(MOST + 1):
            await end(engine, small_worker, stream)
        engine.script = HANGING
        jobs.append(await begin(small_worker, "next", raw(stream=True)))
        assert await is_refused(small_worker, raw(stream=True))


@pytest.mark.parametrize(
    ("wanted", "slots", "jobs", "inside"),
    [
        # As many as the engine computes, and a few that wait.
        *(("auto", slots, jobs, jobs) for slots, jobs in [(1, 2), (8, 16), (32, 64), (256, 288)]),
        # Other ways than the queue can fill the engine, too.
        (1, 128, 1, 160),
        (300, 128, 300, 300),
    ],
)
def test_how_many_jobs_are_taken_and_may_be_inside(
    wanted: Any, slots: int, jobs: int, inside: int
) -> None:
    assert jobs_at_once(wanted, slots) == jobs
    assert most_inside(jobs, slots) == inside
