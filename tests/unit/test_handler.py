"""The parts of the entry point between the SDK and an engine that dies."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, tokens, worker

from handler import fitness_job, take_until_death


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    with ScriptedEngine() as running:
        yield running


async def test_jobs_are_taken_while_the_engine_lives(engine: ScriptedEngine) -> None:
    async def take(*args: Any) -> list[Any]:
        return [*args, "job"]

    assert await take_until_death(take, engine.died)("session", 2) == ["session", 2, "job"]


async def test_a_failing_take_fails_as_the_sdk_expects(engine: ScriptedEngine) -> None:
    async def take() -> None:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        await take_until_death(take, engine.died)()


async def test_the_death_of_the_engine_hangs_up_a_waiting_take(engine: ScriptedEngine) -> None:
    hung_up = asyncio.Event()

    async def take() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            hung_up.set()

    taking = asyncio.create_task(take_until_death(take, engine.died)())
    await asyncio.sleep(0.01)
    assert not hung_up.is_set()
    engine.died.set_result(None)
    async with asyncio.timeout(60):
        await hung_up.wait()
    # And no job is taken from then on: the process is about to end.
    assert not taking.done()
    taking.cancel()


async def test_a_take_that_the_sdk_cancels_is_cancelled(engine: ScriptedEngine) -> None:
    given_up = asyncio.Event()

    async def take() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(take_until_death(take, engine.died)(), 0.01)
    async with asyncio.timeout(60):
        await given_up.wait()


async def test_the_fitness_check_asks_for_what_the_model_can_do() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        answered = [chunk async for chunk in worker(engine).handle(fitness_job(engine.model))]
        assert answered[0]["choices"][0]["tokens"] == ["a"]
        engine.model = replace(engine.model, tasks=frozenset({"embed"}))
        chunks = [chunk async for chunk in worker(engine).handle(fitness_job(engine.model))]
        assert chunks[0]["status"] == "ok"
