"""Jobs that end early: cancelled by their callers, or failed by a worker that is stopped."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message
from support.engine.answers import Consumer, Scripts
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, worker
from support.engine.server import event
from support.engine.yields import broken_stream, events_in, failure, texts_in
from support.processes.background import eventually

from worker.errors import ShuttingDown

STREAMS = {"raw-stream": raw(stream=True), "openai-stream": chat(stream=True)}
PATHS = {**STREAMS, "raw": raw(stream=False), "openai": chat(stream=False)}
every_path = pytest.mark.parametrize("payload", PATHS.values(), ids=PATHS)
every_stream = pytest.mark.parametrize("payload", STREAMS.values(), ids=STREAMS)


@every_path
async def test_a_cancel_ends_a_job_that_waits_for_the_engine_and_no_other(payload: Any) -> None:
    with ScriptedEngine(HANG) as engine:
        stays, goes = (Consumer(worker(engine), payload, name) for name in ("stays", "goes"))
        await eventually(lambda: sorted(engine.generating) == ["goes", "stays"])
        await goes.cancel()
        await eventually(lambda: engine.aborted == ["goes"])
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
        await eventually(lambda: engine.aborted == [aborted])
        assert engine.generating == []
        await sdk.generator.aclose()  # only now: so far it was suspended at its yield


# A worker that is stopped:


async def test_a_raw_stream_has_what_was_computed_and_fails_as_retryable() -> None:
    with ScriptedEngine(*tokens(*"Hello", finish=None), HANG) as engine:
        one = worker(engine)
        consumer = Consumer(one, raw(stream=True))
        await consumer.posting.wait()
        one.end_all(ShuttingDown())
        await eventually(lambda: engine.aborted == ["job-1"])
        yields = await consumer.end()
    error = failure(yields)
    assert (error["code"], error["retryable"]) == (503, True)
    assert "being stopped" in error["message"]
    texts = [text for chunk in yields[:-1] for text in chunk["choices"][0]["tokens"]]
    assert "".join(texts) == "Hello"
    assert len(yields) == 4, "merged as in any stream: 1 and 3 tokens, the rest, and the error"


async def test_an_openai_stream_ends_with_an_error_event() -> None:
    disconnected = asyncio.Event()

    async def app(_: Message, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # In one part, so that all has been produced when the first yield is there.
        events = "".join(event({"choices": [{"delta": {"content": text}}]}) for text in "Hello")
        body = {"type": "http.response.body", "body": events.encode(), "more_body": True}
        await send(body)
        await receive()
        disconnected.set()

    with ScriptedEngine(app=app) as engine:
        one = worker(engine)
        consumer = Consumer(one, chat(stream=True))
        await consumer.posting.wait()
        one.end_all(ShuttingDown())
        begun, error = broken_stream(await consumer.end())
        await eventually(disconnected.is_set)
    assert len(begun) == 4
    *events, last, done = events_in("".join(begun))
    assert "".join(texts_in(events)) == "Hello"
    assert (last["error"], done) == (error, "[DONE]")
    assert (error["code"], error["retryable"]) == (503, True)


@pytest.mark.parametrize("payload", [raw(stream=False), chat(stream=False), chat(stream=True)])
async def test_an_answer_that_has_not_begun_fails(payload: dict[str, Any]) -> None:
    with ScriptedEngine(HANG) as engine:
        one = worker(engine)
        consumer = Consumer(one, payload)
        await eventually(lambda: engine.generating == ["job-1"])
        one.end_all(ShuttingDown())
        yields = await consumer.end()
        await eventually(lambda: engine.aborted == ["job-1"])
    assert len(yields) == 1
    assert failure(yields)["retryable"]


async def test_every_job_ends_and_jobs_that_come_later_are_answered() -> None:
    with ScriptedEngine(HANG) as engine:
        one = worker(engine)
        jobs = [Consumer(one, raw(stream=True), str(number)) for number in range(30)]
        await eventually(lambda: len(engine.generating) == 30)
        one.end_all(ShuttingDown())
        for job in jobs:
            assert failure(await job.end())["code"] == 503
        assert engine.generating == []
        engine.script = tuple(tokens("fine"))
        assert "fine" in str(await Consumer(one, raw(stream=True)).end())


@every_stream
async def test_a_job_runs_until_its_generator_or_its_task_ends(payload: dict[str, Any]) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        one = worker(engine)
        closed = one.handle({"id": "a", "input": payload})
        assert one.running == 0
        await anext(closed)
        sdk = Consumer(one, payload, "b")
        await sdk.posting.wait()
        assert (one.running, engine.generating) == (2, ["a", "b"])
        await closed.aclose()
        assert one.running == 1
        await eventually(lambda: engine.aborted == ["a"])
        await sdk.cancel()
        assert one.running == 0
        await sdk.generator.aclose()
        assert one.running == 0, "counted down twice"
