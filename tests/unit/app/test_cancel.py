"""A cancelled job frees its place in the engine at once."""

from typing import Any

import pytest
from support.engine.answers import Consumer, Scripts
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, until, worker

STREAMS = [raw(stream=True), chat(stream=True)]
every_path = pytest.mark.parametrize(
    "payload",
    [*STREAMS, raw(stream=False), chat(stream=False)],
    ids=["raw-stream", "openai-stream", "raw", "openai"],
)
every_stream = pytest.mark.parametrize("payload", STREAMS, ids=["raw", "openai"])


@every_path
async def test_a_job_cancelled_while_it_waits_for_the_engine_is_aborted(payload: Any) -> None:
    with ScriptedEngine(HANG) as engine:
        sdk = Consumer(worker(engine), payload)
        assert await until(lambda: engine.generating == ["job-1"])
        await sdk.cancel()
        assert await until(lambda: engine.aborted == ["job-1"])
        assert engine.generating == []
        assert sdk.yields == []


@pytest.mark.parametrize(
    ("payload", "aborted"),
    [
        *((stream, "job-1") for stream in STREAMS),
        ({"prompts": ["fast", "slow"], "stream": True}, "job-1-1"),
    ],
    ids=["raw", "openai", "list"],
)
async def test_a_job_cancelled_in_a_post_is_aborted_though_its_generator_is_never_closed(
    payload: dict[str, Any], aborted: str
) -> None:
    script = [*tokens("a", "b", finish=None), HANG]
    with Scripts(Hi=script, slow=script) as engine:
        engine.script = tuple(script)  # for vLLM's server
        sdk = Consumer(worker(engine), payload)
        await sdk.posting.wait()
        await sdk.cancel()
        assert await until(lambda: engine.aborted == [aborted])
        assert engine.generating == []
        await sdk.generator.aclose()  # only now: so far it was suspended at its yield


@every_stream
async def test_a_generator_closed_in_the_middle_aborts_its_request(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        generator = worker(engine).handle({"id": "job-1", "input": payload})
        await anext(generator)
        assert engine.generating == ["job-1"]
        await generator.aclose()
        assert await until(lambda: engine.aborted == ["job-1"])


@every_path
async def test_a_cancel_reaches_no_other_job(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        stays, goes = (Consumer(worker(engine), payload, name) for name in ("stays", "goes"))
        assert await until(lambda: sorted(engine.generating) == ["goes", "stays"])
        await goes.cancel()
        assert await until(lambda: engine.aborted == ["goes"])
        assert engine.generating == ["stays"]
        await stays.cancel()


@every_path
async def test_a_job_that_ended_is_not_aborted(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        assert await Consumer(worker(engine), payload).end()
        assert await until(lambda: engine.generating == [])
        assert engine.aborted == []


@every_stream
async def test_a_job_cancelled_after_its_last_token_needs_no_abort(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        sdk = Consumer(worker(engine), payload)
        await sdk.posting.wait()
        assert await until(lambda: engine.generating == [])
        await sdk.cancel()
        await sdk.generator.aclose()
        assert engine.aborted == []
