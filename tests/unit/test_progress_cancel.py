"""A cancelled job does not wait for an update of its progress whose post hangs."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.engine.scripted import HANG, ScriptedEngine, settings, until

from worker.app import Worker
from worker.progress import reporting

JOB = {"id": "job-1"}


class HangingPlatform:
    """Never answers an update."""

    def __init__(self) -> None:
        self.updates = 0
        self.cancelled = 0

    async def report(self, _: dict[str, Any], __: Any) -> None:
        self.updates += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @property
    def hangs(self) -> bool:
        return (self.updates, self.cancelled) == (1, 0)

    @property
    def was_left(self) -> bool:
        return (self.updates, self.cancelled) == (1, 1)


async def answer(platform: HangingPlatform) -> AsyncGenerator[str, None]:
    async with reporting(JOB, itertools.count().__next__, platform.report):
        yield "first"
        yield "second"


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done == {task}
    assert task.cancelled()


async def test_a_job_that_is_cancelled_within_the_block() -> None:
    platform = HangingPlatform()

    async def run() -> None:
        async with reporting(JOB, itertools.count().__next__, platform.report):
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    assert await until(lambda: platform.hangs)
    await cancelled(task)
    assert platform.was_left


async def test_a_job_that_is_cancelled_while_its_end_waits_for_the_update() -> None:
    platform = HangingPlatform()
    ending = asyncio.Event()

    async def run() -> None:
        async with reporting(JOB, itertools.count().__next__, platform.report):
            assert await until(lambda: platform.hangs)
            ending.set()

    task = asyncio.create_task(run())
    await ending.wait()
    await asyncio.sleep(0.01)
    assert not task.done(), "a normal end waits"
    await cancelled(task)
    assert await until(lambda: platform.was_left)


async def test_a_job_whose_generator_is_closed() -> None:
    platform = HangingPlatform()
    generator = answer(platform)
    await anext(generator)
    assert await until(lambda: platform.hangs)
    async with asyncio.timeout(60):
        await generator.aclose()
    assert platform.was_left


async def test_a_job_that_is_cancelled_though_its_generator_is_kept() -> None:
    platform = HangingPlatform()
    generator = answer(platform)

    async def sdk() -> None:
        async for _ in generator:
            await asyncio.Event().wait()

    task = asyncio.create_task(sdk())
    assert await until(lambda: platform.hangs)
    await cancelled(task)
    assert await until(lambda: platform.was_left)
    await generator.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_list_that_is_cancelled_frees_the_engine_at_once(stream: bool) -> None:
    platform = HangingPlatform()
    with ScriptedEngine(HANG) as engine:
        worker = Worker(engine.engines, settings(), platform.report)
        payload = {"prompts": ["Hi"], "use_tqdm": True, "stream": stream}

        async def run() -> None:
            async with contextlib.aclosing(worker.handle({**JOB, "input": payload})) as chunks:
                async for _ in chunks:
                    pass

        task = asyncio.create_task(run())
        assert await until(lambda: platform.hangs and engine.generating == ["job-1-0"])
        await cancelled(task)
        assert await until(lambda: engine.generating == [])
    assert platform.was_left
    assert worker.running == 0
