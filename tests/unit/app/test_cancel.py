"""A cancelled job frees its place in the engine at once."""

from typing import Any

import pytest
from support.engine.answers import Consumer, Scripts
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, until, worker

STREAMS = {"raw-stream": raw(stream=True), "openai-stream": chat(stream=True)}
PATHS = {**STREAMS, "raw": raw(stream=False), "openai": chat(stream=False)}
every_path = pytest.mark.parametrize("payload", PATHS.values(), ids=PATHS)
every_stream = pytest.mark.parametrize("payload", STREAMS.values(), ids=STREAMS)


@every_path
async def test_a_cancel_ends_a_job_that_waits_for_the_engine_and_no_other(payload: Any) -> None:
    with ScriptedEngine(HANG) as engine:
        stays, goes = (Consumer(worker(engine), payload, name) for name in ("stays", "goes"))
        assert await until(lambda: sorted(engine.generating) == ["goes", "stays"])
        await goes.cancel()
        assert await until(lambda: engine.aborted == ["goes"])
        assert (engine.generating, goes.yields) == (["stays"], [])
        await stays.cancel()


@pytest.mark.parametrize(
    ("payload", "aborted"),
    [
        *((stream, "job-1") for stream in STREAMS.values()),
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


@every_stream
async def test_a_job_cancelled_after_its_last_token_needs_no_abort(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        sdk = Consumer(worker(engine), payload)
        await sdk.posting.wait()
        assert await until(lambda: engine.generating == [])
        await sdk.cancel()
        await sdk.generator.aclose()
        assert engine.aborted == []
