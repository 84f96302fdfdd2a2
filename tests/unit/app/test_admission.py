"""A full worker refuses further jobs immediately; every job that ends frees its slot."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.engine.answers import Consumer, every_form
from support.engine.scripted import HANG, ScriptedEngine, chat_job, failure, raw_job, tokens, worker
from support.processes.background import poll_until

from worker import app
from worker.app import Worker
from worker.errors import RefusedByEngine
from worker.process.concurrency import max_jobs_from_queue, max_jobs_in_worker
from worker.record import JobRecord

MAX_JOBS = max_jobs_in_worker(queue_jobs=1, slots=1)
HANGING_SCRIPT = (*tokens("a", finish=None), HANG)
SHORT_SCRIPT = tuple(tokens("a", "b"))
Yields = AsyncGenerator[Any, None]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        engine.slots = 1
        yield engine


@pytest.fixture
def small_worker(engine: ScriptedEngine) -> Worker:
    """A worker that is full with ``MAX_JOBS`` jobs."""
    return worker(engine, MAX_CONCURRENCY="1")


async def start_job(worker: Worker, name: str, payload: dict[str, Any]) -> Yields:
    """Start a job and wait for its first yield."""
    yields = worker.handle({"id": name, "input": payload})
    await anext(yields)
    return yields


@asynccontextmanager
async def run_jobs(
    engine: ScriptedEngine, worker: Worker, count: int
) -> AsyncIterator[list[Yields]]:
    """Run some jobs that hang; jobs that start inside of the block are short."""
    engine.script = HANGING_SCRIPT
    jobs = [await start_job(worker, f"job-{place}", raw_job(stream=True)) for place in range(count)]
    engine.script = SHORT_SCRIPT
    yield jobs
    for yields in jobs:
        await yields.aclose()


async def run_job(worker: Worker, payload: dict[str, Any]) -> list[Any]:
    return [chunk async for chunk in worker.handle({"id": "asked", "input": payload})]


async def is_refused(worker: Worker, payload: dict[str, Any]) -> bool:
    error = failure(await run_job(worker, payload))
    assert "Send the request again" in error["message"]
    return (error["code"], error["retryable"]) == (503, True)


async def test_jobs_above_the_limit_are_refused_and_do_not_reach_the_engine(
    engine: ScriptedEngine, small_worker: Worker
) -> None:
    async with run_jobs(engine, small_worker, MAX_JOBS):
        for stream in (True, False):
            assert await is_refused(small_worker, raw_job(stream=stream))
            assert await is_refused(small_worker, chat_job(stream=stream))
        assert await is_refused(small_worker, {"prompts": ["Hi", "Hello"]})
        assert await is_refused(small_worker, {"route": "/v1/messages", "body": {"messages": []}})
        assert len(engine.requests) == MAX_JOBS


async def test_the_workers_own_routes_take_no_slot_of_the_engine(
    engine: ScriptedEngine, small_worker: Worker
) -> None:
    async with run_jobs(engine, small_worker, MAX_JOBS) as jobs:
        for route in ("/health", "/metrics", "/v1/models", "/openapi.json", "/chat"):
            assert "error" not in (await run_job(small_worker, {"route": route}))[0]
        await jobs[0].aclose()
        assert "error" not in (await run_job(small_worker, raw_job(stream=False)))[-1]


@contextmanager
def block_threads(engine: ScriptedEngine) -> Iterator[threading.Event]:
    """Let the threads of the engine's loop, which access files, hang until the event is set."""
    released = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(released.wait)
        engine.loop.call_soon_threadsafe(engine.loop.set_default_executor, pool)
        try:
            yield released
        finally:
            released.set()


async def test_too_many_answers_that_need_no_engine_are_refused_except_for_probes(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_OWN_ANSWERS", 3)
    small = worker(engine, FILES_PATH=str(tmp_path))
    list_files = {"route": "/v1/files", "method": "GET"}
    with block_threads(engine) as released:
        waiting = [asyncio.create_task(run_job(small, list_files)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await is_refused(small, list_files)
        for route in ("/health", "/metrics"):
            assert "error" not in (await run_job(small, {"route": route}))[0]
        engine.script = SHORT_SCRIPT
        assert "error" not in (await run_job(small, raw_job(stream=False)))[-1]
        released.set()
        for job in waiting:
            assert (await job)[0]["data"] == []
        assert (await run_job(small, list_files))[0]["data"] == []


async def test_few_files_are_in_memory_until_their_jobs_have_delivered_them(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    small = worker(engine, FILES_PATH=str(tmp_path))
    upload = {"route": "/v1/files", "method": "POST", "body": {"content": "text"}}
    id = (await run_job(small, upload))[0]["id"]
    reading, delivered = [], asyncio.Event()

    async def deliver() -> None:
        """Run a job as the job loop does, whose task ends after the delivery of the result."""
        job = {"id": "a", "input": {"route": f"/v1/files/{id}/content", "method": "GET"}}
        reading.append([chunk async for chunk in small.handle(job, JobRecord("a"))])
        await delivered.wait()

    jobs = [asyncio.create_task(deliver()) for _ in range(3 * app.MAX_FILES_IN_MEMORY)]
    await poll_until(lambda: len(reading) == app.MAX_FILES_IN_MEMORY)
    # The others would have been read by now.
    assert await run_job(small, {"route": "/v1/files", "method": "GET"})
    assert len(reading) == app.MAX_FILES_IN_MEMORY
    delivered.set()
    await asyncio.gather(*jobs)
    assert reading == [["text"]] * len(jobs)


async def refuse_job(_: ScriptedEngine, worker: Worker, stream: bool) -> None:
    assert failure(await run_job(worker, {"prompt": 1, "stream": stream}))["code"] == 400


async def finish_job(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    engine.script = SHORT_SCRIPT
    assert "error" not in (await run_job(worker, raw_job(stream=stream)))[-1]


async def fail_job(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    engine.script = (*tokens("a", finish=None), RefusedByEngine("no", status=400))
    assert failure(await run_job(worker, raw_job(stream=stream)))["code"] == 400


async def close_job(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    engine.script = HANGING_SCRIPT if stream else SHORT_SCRIPT
    yields = await start_job(worker, "ends", raw_job(stream=stream))
    if stream:
        assert await is_refused(worker, raw_job(stream=False))
    else:
        # A complete answer needs no slot while it is sent.
        await finish_job(engine, worker, stream)
    await yields.aclose()


async def cancel_job(engine: ScriptedEngine, worker: Worker, stream: bool) -> None:
    """Cancel a job's task during its post or before it, without closing the generator."""
    engine.script = HANGING_SCRIPT
    sdk = Consumer(worker, raw_job(stream=stream), "ends")
    await poll_until(lambda: "ends" in engine.active_requests and (not stream or bool(sdk.yields)))
    assert await is_refused(worker, raw_job(stream=False))
    await sdk.cancel()
    await finish_job(engine, worker, stream)
    await sdk.generator.aclose()  # closed only after the slot was used again


@every_form
@pytest.mark.parametrize("end_job", [refuse_job, finish_job, fail_job, close_job, cancel_job])
async def test_a_job_that_ends_frees_its_slot(
    engine: ScriptedEngine,
    small_worker: Worker,
    end_job: Callable[[ScriptedEngine, Worker, bool], Awaitable[None]],
    stream: bool,
) -> None:
    async with run_jobs(engine, small_worker, MAX_JOBS - 1) as jobs:
        # More often than there are slots, so that a slot that is not freed is noticed.
        for _ in range(MAX_JOBS + 1):
            await end_job(engine, small_worker, stream)
        engine.script = HANGING_SCRIPT
        jobs.append(await start_job(small_worker, "next", raw_job(stream=True)))
        assert await is_refused(small_worker, raw_job(stream=True))


@pytest.mark.parametrize(
    ("setting", "slots", "queue_jobs", "worker_jobs"),
    [
        # As many jobs as the engine computes, and a few that wait.
        *(
            ("auto", slots, queue_jobs, queue_jobs)
            for slots, queue_jobs in [(1, 2), (8, 16), (32, 64), (256, 288)]
        ),
        # Requests that don't come from the queue can fill the engine, too.
        (1, 128, 1, 160),
        (300, 128, 300, 300),
    ],
)
def test_the_limits_on_jobs_follow_from_the_setting_and_the_slots(
    setting: Any, slots: int, queue_jobs: int, worker_jobs: int
) -> None:
    assert max_jobs_from_queue(setting, slots) == queue_jobs
    assert max_jobs_in_worker(queue_jobs, slots) == worker_jobs
