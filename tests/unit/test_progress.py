"""Progress of a long job: reported while it runs, and never after."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from support.engine.scripted import HANG, ScriptedEngine, settings, tokens, until

from worker import progress
from worker.app import Worker
from worker.engine import Delta
from worker.job import RawJob
from worker.progress import reporting

JOB = {"id": "job-1"}
SHORT = 0.01
# Long enough for several more updates.
A_WHILE = 10 * SHORT


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.INTERVAL_S == 1.0
    monkeypatch.setattr(progress, "INTERVAL_S", SHORT)


class Platform:
    """Receives updates; each call takes some seconds, or until ``lets_go`` is set."""

    def __init__(self, *, lasts: float = 0.0) -> None:
        self.lasts = lasts
        self.lets_go = asyncio.Event()
        self.updates: list[Any] = []
        self.times: list[float] = []
        self.arrived = 0
        self.cancelled = 0

    async def report(self, job: dict[str, Any], update: Any) -> None:
        assert job["id"] == "job-1"
        self.times.append(asyncio.get_running_loop().time())
        self.updates.append(update)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.lasts):
                    await self.lets_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.arrived += 1

    async def stays_silent(self) -> bool:
        before = len(self.updates)
        await asyncio.sleep(A_WHILE)
        return len(self.updates) == self.arrived + self.cancelled == before


def always_new() -> Callable[[], int]:
    return itertools.count().__next__


async def test_the_first_update_is_sent_at_once() -> None:
    platform = Platform()
    async with reporting(JOB, lambda: "begun", platform.report):
        assert await until(lambda: platform.updates == ["begun"])


async def test_an_unchanged_state_is_not_sent_again() -> None:
    platform = Platform()
    now = {"done": 0}
    async with reporting(JOB, lambda: dict(now), platform.report):
        await asyncio.sleep(A_WHILE)
        now["done"] = 1
        assert await until(lambda: len(platform.updates) == 2)
        await asyncio.sleep(A_WHILE)
    assert platform.updates == [{"done": 0}, {"done": 1}]


@pytest.mark.parametrize("lasts", [0.0, 0.03])
async def test_updates_keep_their_distance(lasts: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.05)
    platform = Platform(lasts=lasts)
    async with reporting(JOB, always_new(), platform.report):
        assert await until(lambda: len(platform.updates) == 4)
    gaps = [after - before for before, after in itertools.pairwise(platform.times)]
    assert min(gaps) > 0.045


async def test_nothing_is_sent_after_the_block() -> None:
    platform = Platform()
    async with reporting(JOB, always_new(), platform.report):
        assert await until(lambda: len(platform.updates) > 1)
    assert await platform.stays_silent()


async def test_the_end_does_not_wait_for_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 100.0)
    platform = Platform()
    async with asyncio.timeout(60):
        async with reporting(JOB, always_new(), platform.report):
            assert await until(lambda: platform.arrived == 1)


async def test_an_update_on_its_way_is_waited_for() -> None:
    platform = Platform(lasts=60)
    async with reporting(JOB, always_new(), platform.report):
        assert await until(lambda: len(platform.updates) == 1)
        assert platform.arrived == 0
        asyncio.get_running_loop().call_later(0.05, platform.lets_go.set)
    assert platform.arrived == 1
    assert await platform.stays_silent()


async def test_a_failure_goes_through_and_ends_the_updates() -> None:
    platform = Platform()

    async def fail() -> None:
        async with reporting(JOB, always_new(), platform.report):
            assert await until(lambda: len(platform.updates) > 1)
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await fail()
    assert await platform.stays_silent()


async def test_an_update_that_fails_is_logged_and_fails_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def report(_: dict[str, Any], __: Any) -> None:
        raise TimeoutError("no answer")

    async with reporting(JOB, always_new(), report):
        await asyncio.sleep(0)
    assert "no answer" in caplog.text


async def test_without_a_listener_or_a_state_there_are_no_updates() -> None:
    platform = Platform()
    async with reporting(JOB, None, platform.report), reporting(JOB, always_new(), None):
        await asyncio.sleep(A_WHILE)
    assert platform.updates == []


async def answer(platform: Platform) -> AsyncGenerator[str, None]:
    async with reporting(JOB, always_new(), platform.report):
        yield "first"
        yield "second"


async def test_a_cancelled_task_ends_the_updates_though_its_generator_is_kept() -> None:
    platform = Platform()
    generator = answer(platform)

    async def sdk() -> None:
        async for _ in generator:
            await asyncio.Event().wait()

    task = asyncio.create_task(sdk())
    assert await until(lambda: len(platform.updates) > 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(SHORT)
    assert await platform.stays_silent()
    await generator.aclose()


async def test_a_dropped_generator_ends_the_updates() -> None:
    platform = Platform()
    generator = answer(platform)
    await anext(generator)
    assert await until(lambda: len(platform.updates) > 1)
    del generator
    gc.collect()
    await asyncio.sleep(SHORT)
    assert await platform.stays_silent()


# Through the worker:


class Uneven(ScriptedEngine):
    """Answers at once, but never to the prompt "slow"."""

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        self.script = (HANG,) if job.prompt == "slow" else tuple(tokens("a"))
        # Read for the first delta, before any other request runs.
        async with contextlib.aclosing(super().generate(job, request_id)) as deltas:
            async for delta in deltas:
                yield delta


def reporting_worker(engine: ScriptedEngine, platform: Platform) -> Worker:
    return Worker(engine.engines, settings(), report=platform.report)


def given(**keys: Any) -> dict[str, Any]:
    return {"id": "job-1", "input": keys}


async def answers(worker: Worker, job: dict[str, Any]) -> list[Any]:
    return [chunk async for chunk in worker.handle(job)]


every_form = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@every_form
@pytest.mark.parametrize(
    ("count", "asked", "reports"),
    [
        (1, True, True),
        (100, True, True),
        (100, None, True),
        (99, None, False),
        (1, None, False),
        (1, False, False),
        (150, False, False),
    ],
)
async def test_progress_is_reported_for_long_lists_and_where_it_is_asked_for(
    count: int, asked: bool | None, reports: bool, stream: bool
) -> None:
    platform = Platform()
    begin = asyncio.Event()
    with ScriptedEngine(begin, *tokens("a")) as engine:
        job = given(prompts=["Hi"] * count, use_tqdm=asked, stream=stream)
        answering = asyncio.create_task(answers(reporting_worker(engine, platform), job))
        assert await until(lambda: bool(engine.generating and (platform.updates or not reports)))
        engine.loop.call_soon_threadsafe(begin.set)
        yields = await answering
        assert await platform.stays_silent()
    assert len(yields) == (count if stream else 1)
    assert platform.updates[:1] == ([{"done": 0, "total": count}] if reports else [])


@every_form
async def test_progress_counts_items_that_failed_too(stream: bool) -> None:
    platform = Platform()
    with Uneven() as engine:
        prompts: list[Any] = ["slow", "Hi", 7, "slow", "Ho"]
        generator = reporting_worker(engine, platform).handle(
            given(prompts=prompts, use_tqdm=True, stream=stream)
        )

        async def run() -> None:
            async for _ in generator:
                pass

        task = asyncio.create_task(run())
        assert await until(lambda: platform.updates[-1:] == [{"done": 3, "total": 5}])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await platform.stays_silent()
    done = [update["done"] for update in platform.updates]
    assert done == sorted(set(done))
    assert {update["total"] for update in platform.updates} == {5}


async def test_no_update_arrives_after_the_last_yield_of_a_list() -> None:
    platform = Platform(lasts=0.1)
    with ScriptedEngine(*tokens("a")) as engine:
        worker = reporting_worker(engine, platform)
        async for _ in worker.handle(given(prompts=["Hi"], use_tqdm=True)):
            pass
        assert len(platform.updates) == platform.arrived >= 1
        assert await platform.stays_silent()


async def test_closing_the_generator_of_a_list_ends_its_updates() -> None:
    platform = Platform()
    with Uneven() as engine:
        prompts = ["slow", "Hi"]
        generator = reporting_worker(engine, platform).handle(
            given(prompts=prompts, use_tqdm=True, stream=True)
        )
        await anext(generator)
        assert await until(lambda: len(platform.updates) > 0)
        await generator.aclose()
        assert await platform.stays_silent()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_single_prompt_has_no_progress(stream: bool) -> None:
    platform = Platform()
    with ScriptedEngine(0.05, *tokens("a")) as engine:
        worker = reporting_worker(engine, platform)
        async for _ in worker.handle(given(prompt="Hi", stream=stream)):
            pass
    assert platform.updates == []


async def test_without_a_platform_that_listens_a_list_is_answered_all_the_same() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        worker = Worker(engine.engines, settings())
        yields = [chunk async for chunk in worker.handle(given(prompts=["Hi"], use_tqdm=True))]
    assert [list(chunk) for chunk in yields] == [["outputs"]]
