"""Jobs while the engine is dead or set aside: what has not begun begins again or later."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, Step, chat, raw, tokens, worker, yields_of
from support.engine.yields import events_in, failure, texts_in
from support.processes.background import eventually

from worker.errors import EngineDead, KilledEngine

DIES: tuple[Step, ...] = (0.05, EngineDead())
BEGUN = (*tokens("Begun", finish=None), *DIES)
WHOLE = {"raw": raw(stream=False), "openai": chat(stream=False)}
STREAMS = {"raw-stream": raw(stream=True), "openai-stream": chat(stream=True)}


def engine(*script: Step) -> ScriptedEngine:
    """Return an engine that plays this, and, once it has died and is back, an answer."""
    made = ScriptedEngine(*script)
    made.next_script = tuple(tokens("Hello", " there"))
    return made


def text_of(yields: list[Any]) -> str:
    """Return the text of the first choice, in whichever form."""
    if isinstance(yields[0], str):
        return "".join(texts_in(events_in("".join(yields))))
    if "outputs" in yields[0]:
        return text_of(yields[0]["outputs"])
    choices = [chunk["choices"][0] for chunk in yields]
    if "message" in choices[0]:
        return str(choices[0]["message"]["content"])
    return "".join(part for choice in choices for part in choice["tokens"])


@pytest.mark.parametrize(
    ("payload", "script"),
    [
        *(pytest.param(payload, DIES, id=name) for name, payload in {**WHOLE, **STREAMS}.items()),
        pytest.param({"prompts": ["Hi", "Hi"]}, DIES, id="list"),
        # Of what is not streamed nobody has seen anything.
        *(pytest.param(payload, BEGUN, id=f"{name}-begun") for name, payload in WHOLE.items()),
    ],
)
async def test_a_job_of_which_nothing_was_answered_begins_again(
    payload: dict[str, Any], script: tuple[Step, ...]
) -> None:
    with engine(*script) as scripted:
        yields = await yields_of(scripted, payload)
    assert text_of(yields) == "Hello there"
    assert scripted.waited


@pytest.mark.parametrize("payload", STREAMS.values(), ids=list(STREAMS))
async def test_a_stream_that_has_begun_fails_as_retryable_with_what_it_has(payload: Any) -> None:
    with engine(*BEGUN) as scripted:
        yields = await yields_of(scripted, {**payload, "max_batch_delay_ms": 1})
    error = failure(yields)
    assert (error["code"], error["retryable"]) == (503, True)
    assert "Begun" in str(yields[:-1])
    assert scripted.waited == []


async def test_a_request_that_killed_the_engine_fails_and_is_not_retryable() -> None:
    class Killed(ScriptedEngine):
        async def back(self, request_id: str) -> None:
            raise KilledEngine

    with Killed(*DIES) as scripted:
        error = failure(await yields_of(scripted, raw(stream=False)))
    assert (error["code"], error["type"], error["retryable"]) == (500, "InternalServerError", False)
    assert "not run again" in error["message"]


# An engine that is set aside:


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


@pytest.mark.parametrize(
    "payload",
    [raw(stream=False), raw(stream=True), chat(stream=False), {"prompts": ["Hi", "Hi"]}],
    ids=["raw", "stream", "openai", "list"],
)
async def test_a_job_that_comes_meanwhile_is_answered_after_it_or_refused_with_when_to_try_again(
    knocked_engine: Knocked, payload: dict[str, Any]
) -> None:
    async with knocked_engine.engines.aside():
        asking = asyncio.create_task(yields_of(knocked_engine, payload))
        await eventually(lambda: knocked_engine.knocks > 0)
        assert knocked_engine.asked == []
    assert "Hello" in str(await asking)
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
        await eventually(lambda: engine.asked)
        async with engine.engines.aside(patience_s=0.1):
            engine.loop.call_soon_threadsafe(go_on.set)
            assert failure(await asking)["retry_after"] == 60


async def test_the_model_is_not_healthy_and_what_needs_none_is_answered(
    knocked_engine: ScriptedEngine,
) -> None:
    async with knocked_engine.engines.aside():
        assert failure(await yields_of(knocked_engine, {"route": "/health"}))["retry_after"] == 60
        assert worker(knocked_engine).ready
        for route in ("/metrics", "/v1/models", "/openapi.json", "/chat"):
            assert "error" not in (await yields_of(knocked_engine, {"route": route}))[0]
    (answered,) = await yields_of(knocked_engine, {"route": "/health"})
    assert answered["status"] == "ok"


async def test_a_caller_who_is_cancelled_sets_both_engines_free(
    knocked_engine: ScriptedEngine,
) -> None:
    inside = asyncio.Event()
    knocked_engine.embedder = embedder = ScriptedEngine()
    embedder.loop.close()

    async def hold() -> None:
        async with knocked_engine.engines.aside():
            inside.set()
            await asyncio.Event().wait()

    holding, following = (asyncio.create_task(hold()) for _ in range(2))
    await inside.wait()
    assert (knocked_engine.is_aside, embedder.is_aside) == (True, True)
    # One is in its block, the other waits for it.
    following.cancel()
    holding.cancel()
    await asyncio.wait([holding, following])
    assert holding.cancelled()
    assert (knocked_engine.is_aside, embedder.is_aside) == (False, False)
    assert "Hello" in str(await yields_of(knocked_engine, raw(stream=False)))
