"""Progress of a long job, which is reported only while the job runs."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.batches import batch_request, run_batch
from support.caller import Caller
from support.engine.answers import Consumer, PromptScriptsEngine, every_form
from support.engine.scripted import HANG, ScriptedEngine, settings, tokens
from support.processes.background import poll_until

from worker import progress
from worker.app import Worker
from worker.progress import Progress, report_progress

JOB = {"id": "job-1"}


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.INTERVAL_S == 1.0
    monkeypatch.setattr(progress, "INTERVAL_S", 0.01)


class Listener:
    """A receiver of updates: a call returns immediately or, if it ``hangs``, once released."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.released = asyncio.Event()
        if not hangs:
            self.released.set()
        self.updates: list[Any] = []
        self.finished = 0
        self.cancelled = 0
        self.others = asyncio.all_tasks()

    async def report(self, job: dict[str, Any], update: Any) -> None:
        assert job["id"] == "job-1"
        self.updates.append(update)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1

    async def wait_for_updates(self, count: int = 2) -> None:
        await poll_until(lambda: len(self.updates) >= count)

    @property
    def is_idle(self) -> bool:
        """Whether all updates have finished and no task is left that could send another one."""
        ended = len(self.updates) == self.finished + self.cancelled
        return ended and asyncio.all_tasks() <= self.others


@contextlib.asynccontextmanager
async def report_changes(listener: Listener) -> AsyncIterator[None]:
    """Report a progress that changes all the time."""
    progress = Progress(done=0)

    async def change() -> None:
        while True:
            await asyncio.sleep(0.001)
            progress.update(done=progress.values["done"] + 1)

    task = asyncio.create_task(change())
    listener.others.add(task)
    try:
        async with report_progress(JOB, progress, listener.report):
            yield
    finally:
        task.cancel()


async def run_job(listener: Listener) -> AsyncGenerator[str, None]:
    async with report_changes(listener):
        yield "first"
        yield "second"


def start_hanging_sdk(generator: AsyncGenerator[Any, None]) -> asyncio.Task[None]:
    """Iterate over a job as the SDK does, but never return from the first POST."""

    async def sdk() -> None:
        async for _ in generator:
            await asyncio.Event().wait()

    return asyncio.create_task(sdk())


async def cancel_task(task: asyncio.Task[Any]) -> bool:
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


async def test_the_first_update_is_sent_immediately_and_an_unchanged_state_is_not_repeated() -> (
    None
):
    listener, progress = Listener(), Progress(done=0)
    async with report_progress(JOB, progress, listener.report):
        await listener.wait_for_updates(1)
        for done in (0, 0, 1, 1):
            await asyncio.to_thread(progress.update, done=done)
        await listener.wait_for_updates(2)
        await asyncio.to_thread(progress.update, done=1)
        await asyncio.sleep(0.05)
    assert listener.updates == [{"done": 0}, {"done": 1}]


async def test_two_updates_are_at_least_the_interval_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.05)
    times: list[float] = []

    class Clock(Listener):
        async def report(self, job: dict[str, Any], update: Any) -> None:
            times.append(asyncio.get_running_loop().time())

    async with report_changes(Clock()):
        await poll_until(lambda: len(times) == 3)
    assert min(after - before for before, after in itertools.pairwise(times)) > 0.045


async def test_the_end_does_not_wait_for_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 10_000.0)
    async with report_changes(Listener()):
        pass


async def test_the_end_waits_for_an_update_that_is_being_sent() -> None:
    listener = Listener(hangs=True)
    async with report_changes(listener):
        await listener.wait_for_updates(1)
        asyncio.get_running_loop().call_later(0.02, listener.released.set)
    assert listener.finished == 1
    assert listener.is_idle


async def test_an_update_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def report(_: dict[str, Any], __: Any) -> None:
        raise TimeoutError("no answer")

    async with report_progress(JOB, Progress(), report):
        await asyncio.sleep(0)
    assert "no answer" in caplog.text


async def test_without_a_listener_or_a_state_there_are_no_updates() -> None:
    listener = Listener()
    async with report_progress(JOB, None, listener.report), report_progress(JOB, Progress(), None):
        assert listener.is_idle


# A job that is cancelled does not wait for an update whose post hangs:


@pytest.mark.parametrize("hangs", [False, True])
async def test_cancelling_the_task_stops_the_updates_although_its_generator_exists(
    hangs: bool,
) -> None:
    listener = Listener(hangs=hangs)
    generator = run_job(listener)
    task = start_hanging_sdk(generator)
    await listener.wait_for_updates(1 if hangs else 2)
    assert await cancel_task(task)
    await poll_until(lambda: listener.is_idle)
    assert listener.cancelled == hangs
    await generator.aclose()


@pytest.mark.parametrize("is_closed", [True, False])
async def test_closing_or_deleting_the_generator_stops_the_updates(is_closed: bool) -> None:
    listener = Listener(hangs=is_closed)
    generator = run_job(listener)
    await anext(generator)
    await listener.wait_for_updates(1 if is_closed else 2)
    if is_closed:
        await generator.aclose()
        assert listener.is_idle
    del generator
    gc.collect(1)
    await poll_until(lambda: listener.is_idle)


async def test_a_job_can_be_cancelled_while_it_waits_for_its_last_update() -> None:
    listener = Listener(hangs=True)
    ending = asyncio.Event()

    async def run() -> None:
        async with report_changes(listener):
            await listener.wait_for_updates(1)
            ending.set()

    task = asyncio.create_task(run())
    await ending.wait()
    await asyncio.sleep(0)
    assert not task.done(), "a normal end waits"
    assert await cancel_task(task)
    await poll_until(lambda: listener.is_idle)


# Jobs of the worker:


def reporting_worker(engine: ScriptedEngine, listener: Listener) -> Worker:
    return Worker(engine.engines, settings(), report=listener.report)


PROMPTS = {"prompts": ["slow", "Hi", 7, "slow", "Ho"], "use_tqdm": True}


@every_form
@pytest.mark.parametrize(
    ("payload", "is_reported"),
    [
        ({"prompts": ["Hi"], "use_tqdm": True}, True),
        ({"prompts": ["Hi"] * 100}, True),
        ({"prompts": ["Hi"] * 99}, False),
        ({"prompts": ["Hi"] * 150, "use_tqdm": False}, False),
        ({"prompt": "Hi"}, False),
    ],
    ids=["requested", "long", "short", "disabled", "single"],
)
async def test_progress_is_reported_for_long_lists_and_on_request(
    payload: dict[str, Any], is_reported: bool, stream: bool
) -> None:
    listener = Listener()
    begin = asyncio.Event()
    with ScriptedEngine(begin, *tokens("a")) as engine:
        consumer = Consumer(reporting_worker(engine, listener), {**payload, "stream": stream})
        await poll_until(lambda: engine.active_requests and (listener.updates or not is_reported))
        engine.loop.call_soon_threadsafe(begin.set)
        assert await consumer.finish()
    total = len(payload.get("prompts", ()))
    assert listener.updates[:1] == ([{"done": 0, "total": total}] if is_reported else [])
    assert listener.is_idle


@every_form
async def test_progress_also_counts_failed_items(stream: bool) -> None:
    listener = Listener()
    with PromptScriptsEngine(slow=[HANG]) as engine:
        consumer = Consumer(reporting_worker(engine, listener), {**PROMPTS, "stream": stream})
        consumer.post_finished.set()
        await poll_until(lambda: listener.updates[-1:] == [{"done": 3, "total": 5}])
        await consumer.cancel()
    done = [update["done"] for update in listener.updates]
    assert done == sorted(set(done))
    assert {update["total"] for update in listener.updates} == {5}


@pytest.mark.parametrize("in_background", [False, True])
async def test_work_without_a_job_of_the_platform_reports_no_progress(
    tmp_path: Path, in_background: bool
) -> None:
    listener = Listener()
    with ScriptedEngine(*tokens("a")) as engine:
        caller = Caller(engine, tmp_path)
        batch = (await caller.run_job(batch=batch_request(2)))["batch"]
        worker = Worker(engine.engines, caller.settings, report=listener.report)
        await run_batch(worker, id=batch["id"], background=in_background)
    assert bool(listener.updates) is not in_background
