"""Jobs that come while the engine is set aside, from the jobs' loop, which is not the engine's."""

import asyncio
from typing import Any

import pytest
from support.engine.scripted import (
    ScriptedEngine,
    chat,
    failure,
    raw,
    tokens,
    until,
    worker,
    yields_of,
)

JOBS = [raw(stream=False), raw(stream=True), chat(stream=False), {"prompts": ["Hi", "Hi"]}]
NAMES = ["raw", "stream", "openai", "list"]


class Embedder(ScriptedEngine):
    """Shares the loop of another engine."""

    def __init__(self, main: ScriptedEngine) -> None:
        super().__init__()
        self.loop.close()
        self.loop = main.loop


@pytest.mark.parametrize("payload", JOBS, ids=NAMES)
async def test_a_job_that_comes_meanwhile_is_answered_after_it(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("Hello")) as engine:
        async with engine.engines.aside():
            asking = asyncio.create_task(yields_of(engine, payload))
            await asyncio.wait([asking], timeout=0.3)
            assert engine.asked == []
        assert "Hello" in str(await asking)


@pytest.mark.parametrize("payload", JOBS, ids=NAMES)
async def test_a_job_that_waits_for_too_long_is_told_when_to_come_again(
    payload: dict[str, Any],
) -> None:
    with ScriptedEngine(*tokens("Hello")) as engine:
        async with engine.engines.aside(patience_s=0.1):
            error = failure(await yields_of(engine, payload))
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "fine-tuned" in error["message"]


async def test_the_items_of_a_list_that_has_begun_fail_with_it() -> None:
    """Another worker can answer all of it."""
    with ScriptedEngine(*tokens("Hello", "!", pause=0.5)) as engine:
        engine.slots = 1
        asking = asyncio.create_task(yields_of(engine, {"prompts": ["Hi"] * 9}))
        assert await until(lambda: bool(engine.asked))
        async with engine.engines.aside(patience_s=0.1):
            assert failure(await asking)["retry_after"] == 60


@pytest.mark.parametrize("route", ["/metrics", "/v1/models", "/openapi.json", "/chat"])
async def test_what_the_worker_answers_by_itself_goes_on(route: str) -> None:
    with ScriptedEngine() as engine:
        async with engine.engines.aside():
            (answered,) = await yields_of(engine, {"route": route})
    assert "error" not in answered


async def test_the_health_is_that_of_a_model_that_does_not_answer_and_jobs_are_taken() -> None:
    with ScriptedEngine() as engine:
        async with engine.engines.aside():
            assert failure(await yields_of(engine, {"route": "/health"}))["retry_after"] == 60
            assert worker(engine).ready
        (answered,) = await yields_of(engine, {"route": "/health"})
    assert answered["status"] == "ok"


async def test_both_engines_are_set_aside() -> None:
    with ScriptedEngine() as engine:
        engine.embedder = embedder = Embedder(engine)
        async with engine.engines.aside():
            assert engine.is_aside
            assert embedder.is_aside
        assert not engine.is_aside
        assert not embedder.is_aside


async def test_a_caller_who_is_cancelled_sets_the_engine_free() -> None:
    with ScriptedEngine(*tokens("Hello")) as engine:
        inside = asyncio.Event()

        async def hold() -> None:
            async with engine.engines.aside():
                inside.set()
                await asyncio.Event().wait()

        holding, following = (asyncio.create_task(hold()) for _ in range(2))
        await inside.wait()
        # One is in its block, the other waits for it.
        following.cancel()
        holding.cancel()
        await asyncio.wait([holding, following])
        assert holding.cancelled()
        assert not engine.is_aside
        assert "Hello" in str(await yields_of(engine, raw(stream=False)))


async def test_it_works_on_the_engines_own_loop() -> None:
    with ScriptedEngine() as engine:

        async def hold() -> bool:
            async with engine.engines.aside():
                return engine.is_aside

        assert await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(hold(), engine.loop))
        assert not engine.is_aside
