"""Jobs while the engine is dead or suspended: jobs without output are repeated or wait."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.scripted import (
    ScriptedEngine,
    Step,
    chat_job,
    events_in,
    failure,
    raw_job,
    texts_in,
    tokens,
    worker,
    yields_of,
)
from support.processes.background import poll_until

from worker.errors import EngineDead, RequestKilledEngine

DIE: tuple[Step, ...] = (0.05, EngineDead())
DIE_AFTER_OUTPUT = (*tokens("Begun", finish=None), *DIE)
WHOLE = {"raw": raw_job(stream=False), "openai": chat_job(stream=False)}
STREAMS = {"raw-stream": raw_job(stream=True), "openai-stream": chat_job(stream=True)}


def make_engine(*script: Step) -> ScriptedEngine:
    """Return an engine that plays the script and, after it has died and recovered, a response."""
    engine = ScriptedEngine(*script)
    engine.next_script = tuple(tokens("Hello", " there"))
    return engine


def text_of(yields: list[Any]) -> str:
    """Return the text of the first choice from yields of any form."""
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
        *(pytest.param(payload, DIE, id=name) for name, payload in {**WHOLE, **STREAMS}.items()),
        pytest.param({"prompts": ["Hi", "Hi"]}, DIE, id="list"),
        # Without a stream, the caller has no output yet.
        *(
            pytest.param(payload, DIE_AFTER_OUTPUT, id=f"{name}-after-output")
            for name, payload in WHOLE.items()
        ),
    ],
)
async def test_a_job_without_yields_is_repeated_after_the_engine_has_recovered(
    payload: dict[str, Any], script: tuple[Step, ...]
) -> None:
    with make_engine(*script) as engine:
        yields = await yields_of(engine, payload)
    assert text_of(yields) == "Hello there"
    assert engine.requests_awaiting_recovery


@pytest.mark.parametrize("payload", STREAMS.values(), ids=list(STREAMS))
async def test_a_stream_with_output_yields_the_output_and_fails_as_retryable(payload: Any) -> None:
    with make_engine(*DIE_AFTER_OUTPUT) as engine:
        yields = await yields_of(engine, {**payload, "max_batch_delay_ms": 1})
    error = failure(yields)
    assert (error["code"], error["retryable"]) == (503, True)
    assert "Begun" in str(yields[:-1])
    assert engine.requests_awaiting_recovery == []


async def test_a_request_that_killed_the_engine_fails_and_is_not_retryable() -> None:
    class KilledEngine(ScriptedEngine):
        async def wait_for_recovery(self, request_id: str) -> None:
            raise RequestKilledEngine

    with KilledEngine(*DIE) as engine:
        error = failure(await yields_of(engine, raw_job(stream=False)))
    assert (error["code"], error["type"], error["retryable"]) == (500, "InternalServerError", False)
    assert "not run again" in error["message"]


# A suspended engine:


class AdmissionCountingEngine(ScriptedEngine):
    """An engine that counts the requests that wait for admission."""

    admissions = 0

    async def wait_until_resumed(self) -> None:
        self.admissions += 1
        await super().wait_until_resumed()


@pytest.fixture
def counting_engine() -> Iterator[AdmissionCountingEngine]:
    with AdmissionCountingEngine(*tokens("Hello")) as engine:
        yield engine


@pytest.mark.parametrize(
    "payload",
    [
        raw_job(stream=False),
        raw_job(stream=True),
        chat_job(stream=False),
        {"prompts": ["Hi", "Hi"]},
    ],
    ids=["raw", "stream", "openai", "list"],
)
async def test_a_job_for_a_suspended_engine_waits_or_is_refused_with_retry_after(
    counting_engine: AdmissionCountingEngine, payload: dict[str, Any]
) -> None:
    async with counting_engine.engines.suspend():
        job_task = asyncio.create_task(yields_of(counting_engine, payload))
        await poll_until(lambda: counting_engine.admissions > 0)
        assert counting_engine.requests == []
    assert "Hello" in str(await job_task)
    async with counting_engine.engines.suspend(wait_timeout_s=0.1):
        error = failure(await yields_of(counting_engine, payload))
    assert (error["code"], error["retryable"], error["retry_after"]) == (503, True, 60)
    assert "fine-tuning the model" in error["message"]


async def test_a_list_fails_as_a_whole_if_the_engine_is_suspended_after_its_first_items() -> None:
    """Another worker can then answer the whole list."""
    go_on = asyncio.Event()
    with ScriptedEngine(go_on, *tokens("Hello")) as engine:
        engine.slots = 1
        job_task = asyncio.create_task(yields_of(engine, {"prompts": ["Hi"] * 9}))
        await poll_until(lambda: engine.requests)
        async with engine.engines.suspend(wait_timeout_s=0.1):
            engine.loop.call_soon_threadsafe(go_on.set)
            assert failure(await job_task)["retry_after"] == 60


async def test_a_suspended_engine_is_unhealthy_and_routes_without_a_model_are_answered(
    counting_engine: ScriptedEngine,
) -> None:
    async with counting_engine.engines.suspend():
        assert failure(await yields_of(counting_engine, {"route": "/health"}))["retry_after"] == 60
        assert worker(counting_engine).ready
        for route in ("/metrics", "/v1/models", "/openapi.json", "/chat"):
            assert "error" not in (await yields_of(counting_engine, {"route": route}))[0]
    (health,) = await yields_of(counting_engine, {"route": "/health"})
    assert health["status"] == "ok"


async def test_cancelled_suspensions_resume_both_engines(counting_engine: ScriptedEngine) -> None:
    is_suspended = asyncio.Event()
    counting_engine.embedder = embedder = ScriptedEngine()
    embedder.loop.close()

    async def suspend_engines() -> None:
        async with counting_engine.engines.suspend():
            is_suspended.set()
            await asyncio.Event().wait()

    first, second = (asyncio.create_task(suspend_engines()) for _ in range(2))
    await is_suspended.wait()
    assert (counting_engine.is_suspended, embedder.is_suspended) == (True, True)
    # The first task is inside of its block, and the second waits for the first.
    second.cancel()
    first.cancel()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert (counting_engine.is_suspended, embedder.is_suspended) == (False, False)
    assert "Hello" in str(await yields_of(counting_engine, raw_job(stream=False)))
