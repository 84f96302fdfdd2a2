"""Progress of a long job: reported while it runs, and never after."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.engine.answers import Consumer, Scripts, every_form
from support.engine.scripted import HANG, ScriptedEngine, settings, tokens
from support.processes.background import eventually

from worker import progress
from worker.app import Worker
from worker.progress import reporting

JOB = {"id": "job-1"}


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.INTERVAL_S == 1.0
    monkeypatch.setattr(progress, "INTERVAL_S", 0.01)


class Listener:
    """Receives updates; a call returns at once, or, if it ``hangs``, when it is let go."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.lets_go = asyncio.Event()
        if not hangs:
            self.lets_go.set()
        self.updates: list[Any] = []
        self.arrived = 0
        self.cancelled = 0
        self._tasks = asyncio.all_tasks()

    async def report(self, job: dict[str, Any], update: Any) -> None:
        assert job["id"] == "job-1"
        self.updates.append(update)
        try:
            await self.lets_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.arrived += 1

    async def has_updates(self, count: int = 2) -> None:
        await eventually(lambda: len(self.updates) >= count)

    @property
    def is_left(self) -> bool:
        """Whether all updates have ended, and no task is left that could send another."""
        ended = len(self.updates) == self.arrived + self.cancelled
        return ended and asyncio.all_tasks() <= self._tasks


def block(listener: Listener) -> contextlib.AbstractAsyncContextManager[None]:
    """Report a progress that is always new."""
    return reporting(JOB, itertools.count().__next__, listener.report)


async def job(listener: Listener) -> AsyncGenerator[str, None]:
    async with block(listener):
        yield "first"
        yield "second"


def suspended(generator: AsyncGenerator[Any, None]) -> asyncio.Task[None]:
    """Iterate a job as the SDK does, and never return from the first post."""

    async def sdk() -> None:
        async for _ in generator:
            await asyncio.Event().wait()

    return asyncio.create_task(sdk())


async def is_cancelled(task: asyncio.Task[Any]) -> bool:
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_the_first_update_is_sent_at_once_and_an_unchanged_state_not_again() -> None:
    listener = Listener()
    looks = 0
    now = {"done": 0}

    def state() -> dict[str, int]:
        nonlocal looks
        looks += 1
        return dict(now)

    async with reporting(JOB, state, listener.report):
        await eventually(lambda: looks == 5)
        now["done"] = 1
        await eventually(lambda: looks == 10)
    assert listener.updates == [{"done": 0}, {"done": 1}]


async def test_updates_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.05)
    times: list[float] = []

    async def report(_: dict[str, Any], __: Any) -> None:
        times.append(asyncio.get_running_loop().time())

    async with reporting(JOB, itertools.count().__next__, report):
        await eventually(lambda: len(times) == 3)
    assert min(after - before for before, after in itertools.pairwise(times)) > 0.045


async def test_the_end_does_not_wait_for_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 10_000.0)
    async with block(Listener()):
        pass


async def test_an_update_on_its_way_is_waited_for() -> None:
    listener = Listener(hangs=True)
    async with block(listener):
        await listener.has_updates(1)
        asyncio.get_running_loop().call_later(0.02, listener.lets_go.set)
    assert listener.arrived == 1
    assert listener.is_left


async def test_an_update_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def report(_: dict[str, Any], __: Any) -> None:
        raise TimeoutError("no answer")

    async with reporting(JOB, lambda: 0, report):
        await asyncio.sleep(0)
    assert "no answer" in caplog.text


async def test_without_a_listener_or_a_state_there_are_no_updates() -> None:
    listener = Listener()
    async with reporting(JOB, None, listener.report), reporting(JOB, lambda: 0, None):
        assert listener.is_left


# A job that is cancelled does not wait for an update whose post hangs:


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_cancelled_task_ends_the_updates_though_its_generator_is_kept(hangs: bool) -> None:
    listener = Listener(hangs=hangs)
    generator = job(listener)
    task = suspended(generator)
    await listener.has_updates(1 if hangs else 2)
    assert await is_cancelled(task)
    await eventually(lambda: listener.is_left)
    assert listener.cancelled == hangs
    await generator.aclose()


@pytest.mark.parametrize("closed", [True, False])
async def test_a_generator_that_is_closed_or_dropped_ends_the_updates(closed: bool) -> None:
    listener = Listener(hangs=closed)
    generator = job(listener)
    await anext(generator)
    await listener.has_updates(1 if closed else 2)
    if closed:
        await generator.aclose()
        assert listener.is_left
    del generator
    gc.collect(1)
    await eventually(lambda: listener.is_left)


async def test_a_job_that_is_cancelled_while_its_end_waits_for_the_update() -> None:
    listener = Listener(hangs=True)
    ending = asyncio.Event()

    async def run() -> None:
        async with block(listener):
            await listener.has_updates(1)
            ending.set()

    task = asyncio.create_task(run())
    await ending.wait()
    await asyncio.sleep(0)
    assert not task.done(), "a normal end waits"
    assert await is_cancelled(task)
    await eventually(lambda: listener.is_left)


# Through the worker:


def reporting_worker(engine: ScriptedEngine, listener: Listener | None) -> Worker:
    return Worker(engine.engines, settings(), report=listener.report if listener else None)


LIST = {"prompts": ["slow", "Hi", 7, "slow", "Ho"], "use_tqdm": True}


@every_form
@pytest.mark.parametrize(
    ("payload", "reports"),
    [
        ({"prompts": ["Hi"], "use_tqdm": True}, True),
        ({"prompts": ["Hi"] * 100}, True),
        ({"prompts": ["Hi"] * 99}, False),
        ({"prompts": ["Hi"] * 150, "use_tqdm": False}, False),
        ({"prompt": "Hi"}, False),
    ],
    ids=["asked-for", "long", "short", "not-wanted", "single"],
)
async def test_progress_is_reported_for_long_lists_and_where_it_is_asked_for(
    payload: dict[str, Any], reports: bool, stream: bool
) -> None:
    listener = Listener()
    begin = asyncio.Event()
    with ScriptedEngine(begin, *tokens("a")) as engine:
        consumer = Consumer(reporting_worker(engine, listener), {**payload, "stream": stream})
        await eventually(lambda: engine.generating and (listener.updates or not reports))
        engine.loop.call_soon_threadsafe(begin.set)
        assert await consumer.end()
    total = len(payload.get("prompts", ()))
    assert listener.updates[:1] == ([{"done": 0, "total": total}] if reports else [])
    assert listener.is_left


@every_form
async def test_progress_counts_items_that_failed_too(stream: bool) -> None:
    listener = Listener()
    with Scripts(slow=[HANG]) as engine:
        consumer = Consumer(reporting_worker(engine, listener), {**LIST, "stream": stream})
        consumer.posted.set()
        await eventually(lambda: listener.updates[-1:] == [{"done": 3, "total": 5}])
        await consumer.cancel()
    done = [update["done"] for update in listener.updates]
    assert done == sorted(set(done))
    assert {update["total"] for update in listener.updates} == {5}


async def test_without_a_platform_that_listens_a_list_is_answered_all_the_same() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = reporting_worker(engine, None)
        yields = await Consumer(worker, {"prompts": ["Hi"], "use_tqdm": True}).end()
    assert [list(chunk) for chunk in yields] == [["outputs"]]
