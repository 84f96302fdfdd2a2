"""A worker that is stopped ends its answers: with what they have, and a retryable error."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message
from support.engine.answers import Consumer
from support.engine.scripted import HANG, ScriptedEngine, chat, raw, tokens, until, worker
from support.engine.server import event
from support.engine.yields import broken_stream, events_in, failure, texts_in

from worker.errors import ShuttingDown


async def test_a_raw_stream_has_what_was_computed_and_fails_as_retryable() -> None:
    with ScriptedEngine(*tokens(*"Hello", finish=None), HANG) as engine:
        one = worker(engine)
        consumer = Consumer(one, raw(stream=True))
        await consumer.posting.wait()
        one.end_all(ShuttingDown())
        assert await until(lambda: engine.aborted == ["job-1"])
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
        assert await until(disconnected.is_set)
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
        assert await until(lambda: engine.generating == ["job-1"])
        one.end_all(ShuttingDown())
        yields = await consumer.end()
        assert await until(lambda: engine.aborted == ["job-1"])
    assert len(yields) == 1
    assert failure(yields)["retryable"]


async def test_every_job_ends_and_jobs_that_come_later_are_answered() -> None:
    with ScriptedEngine(HANG) as engine:
        one = worker(engine)
        jobs = [Consumer(one, raw(stream=True), str(number)) for number in range(30)]
        assert await until(lambda: len(engine.generating) == 30)
        one.end_all(ShuttingDown())
        for job in jobs:
            assert failure(await job.end())["code"] == 503
        assert engine.generating == []
        engine.script = tuple(tokens("fine"))
        assert "fine" in str(await Consumer(one, raw(stream=True)).end())


async def test_a_job_runs_until_its_generator_or_its_task_ends() -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        one = worker(engine)
        closed = one.handle({"id": "a", "input": raw(stream=True)})
        assert one.running == 0
        await anext(closed)
        sdk = Consumer(one, raw(stream=True), "b")
        await sdk.posting.wait()
        assert one.running == 2
        await closed.aclose()
        assert one.running == 1
        await sdk.cancel()
        assert one.running == 0
        await sdk.generator.aclose()
        assert one.running == 0, "counted down twice"
