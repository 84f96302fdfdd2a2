"""Jobs that come while the engine is set aside, from the jobs' loop, which is not the engine's."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, chat, raw, tokens, until, worker, yields_of
from support.engine.yields import failure

every_job = pytest.mark.parametrize(
    "payload",
    [raw(stream=False), raw(stream=True), chat(stream=False), {"prompts": ["Hi", "Hi"]}],
    ids=["raw", "stream", "openai", "list"],
)


class Embedder(ScriptedEngine):
    """Shares the loop of another engine."""

    def __init__(self, main: ScriptedEngine) -> None:
        super().__init__()
        self.loop.close()
        self.loop = main.loop


class Knocked(ScriptedEngine):
    """Counts the requests that want to be admitted."""

    knocks = 0

    async def admit(self) -> None:
        self.knocks += 1
        await super().admit()


@pytest.fixture
def knocked_engine() -> Iterator[Knocked]:
    with Knocked(*tokens("Hello")) as engine:
        yield engine


@every_job
async def test_a_job_that_comes_meanwhile_is_answered_after_it(
    knocked_engine: Knocked, payload: dict[str, Any]
) -> None:
    async with knocked_engine.engines.aside():
        asking = asyncio.create_task(yields_of(knocked_engine, payload))
        assert await until(lambda: knocked_engine.knocks > 0)
        assert knocked_engine.asked == []
    assert "Hello" in str(await asking)


@every_job
async def test_a_job_that_waits_for_too_long_is_told_when_to_come_again(
    knocked_engine: ScriptedEngine, payload: dict[str, Any]
) -> None:
    async with knocked_engine.engines.aside(patience_s=0.1):
        error = failure(await yields_of(knocked_engine, payload))
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "fine-tuned" in error["message"]


async def test_the_items_of_a_list_that_has_begun_fail_with_it() -> None:
    """Another worker can answer all of it."""
    go_on = asyncio.Event()
    with ScriptedEngine(go_on, *tokens("Hello")) as engine:
        engine.slots = 1
        asking = asyncio.create_task(yields_of(engine, {"prompts": ["Hi"] * 9}))
        assert await until(lambda: bool(engine.asked))
        async with engine.engines.aside(patience_s=0.1):
            engine.loop.call_soon_threadsafe(go_on.set)
            assert failure(await asking)["retry_after"] == 60


@pytest.mark.parametrize("route", ["/metrics", "/v1/models", "/openapi.json", "/chat"])
async def test_what_the_worker_itself_answers_goes_on(
    knocked_engine: ScriptedEngine, route: str
) -> None:
    async with knocked_engine.engines.aside():
        (answered,) = await yields_of(knocked_engine, {"route": route})
    assert "error" not in answered


async def test_the_model_is_not_healthy_and_jobs_are_taken(knocked_engine: ScriptedEngine) -> None:
    async with knocked_engine.engines.aside():
        assert failure(await yields_of(knocked_engine, {"route": "/health"}))["retry_after"] == 60
        assert worker(knocked_engine).ready
    (answered,) = await yields_of(knocked_engine, {"route": "/health"})
    assert answered["status"] == "ok"


async def test_both_engines_are_set_aside(knocked_engine: ScriptedEngine) -> None:
    knocked_engine.embedder = embedder = Embedder(knocked_engine)
    async with knocked_engine.engines.aside():
        assert (knocked_engine.is_aside, embedder.is_aside) == (True, True)
    assert (knocked_engine.is_aside, embedder.is_aside) == (False, False)


async def test_a_caller_who_is_cancelled_sets_the_engine_free(
    knocked_engine: ScriptedEngine,
) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with knocked_engine.engines.aside():
            inside.set()
            await asyncio.Event().wait()

    holding, following = (asyncio.create_task(hold()) for _ in range(2))
    await inside.wait()
    # One is in its block, the other waits for it.
    following.cancel()
    holding.cancel()
    await asyncio.wait([holding, following])
    assert holding.cancelled()
    assert not knocked_engine.is_aside
    assert "Hello" in str(await yields_of(knocked_engine, raw(stream=False)))


async def test_it_works_on_the_engines_own_loop(knocked_engine: ScriptedEngine) -> None:
    async def hold() -> bool:
        async with knocked_engine.engines.aside():
            return knocked_engine.is_aside

    assert await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(hold(), knocked_engine.loop))
    assert not knocked_engine.is_aside
