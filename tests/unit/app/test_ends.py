"""Jobs that end early: their callers cancel them, or the worker shuts down."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message
from support.engine.answers import EXACT, Consumer, PromptScriptsEngine
from support.engine.scripted import (
    HANG,
    ScriptedEngine,
    chat_job,
    event,
    events_in,
    failure,
    raw_job,
    split_stream_error,
    texts_in,
    tokens,
    worker,
)
from support.metrics import watch_metrics
from support.processes.background import poll_until

from worker.errors import ShuttingDown
from worker.metrics import RUNNING_JOBS

STREAMS = {"raw-stream": raw_job(stream=True), "openai-stream": chat_job(stream=True)}
PATHS = {**STREAMS, "raw": raw_job(stream=False), "openai": chat_job(stream=False)}
every_path = pytest.mark.parametrize("payload", PATHS.values(), ids=PATHS)
every_stream = pytest.mark.parametrize("payload", STREAMS.values(), ids=STREAMS)


@every_path
async def test_a_cancel_ends_only_its_own_job_while_the_job_waits_for_the_engine(
    payload: Any,
) -> None:
    with ScriptedEngine(HANG) as engine:
        other_job, cancelled_job = (
            Consumer(worker(engine), payload, name) for name in ("stays", "goes")
        )
        await poll_until(lambda: sorted(engine.active_requests) == ["goes", "stays"])
        await cancelled_job.cancel()
        await poll_until(lambda: engine.aborted_requests == ["goes"])
        assert (engine.active_requests, cancelled_job.yields) == (["stays"], [])
        await other_job.cancel()


@pytest.mark.parametrize(
    ("payload", "aborted"),
    [
        *((stream, "job-1") for stream in STREAMS.values()),
        ({"prompts": ["fast", "slow"], "stream": True}, "job-1-1"),
    ],
    ids=["raw", "openai", "list"],
)
async def test_a_job_cancelled_during_a_post_is_aborted_without_closing_its_generator(
    payload: dict[str, Any], aborted: str
) -> None:
    script = [*tokens("a", "b", finish=None), HANG]
    with PromptScriptsEngine(Hi=script, slow=script) as engine:
        engine.script = tuple(script)  # for vLLM's server
        sdk = Consumer(worker(engine), payload)
        await sdk.post_started.wait()
        await sdk.cancel()
        await poll_until(lambda: engine.aborted_requests == [aborted])
        assert engine.active_requests == []
        await sdk.generator.aclose()  # so far it was suspended at its yield


# A worker that shuts down:


async def test_a_raw_stream_yields_its_computed_tokens_and_fails_as_retryable() -> None:
    with ScriptedEngine(*tokens(*"Hello", finish=None), HANG) as engine:
        job_worker = worker(engine)
        consumer = Consumer(job_worker, raw_job(stream=True, **EXACT))
        await consumer.post_started.wait()
        job_worker.fail_all_jobs(ShuttingDown())
        await poll_until(lambda: engine.aborted_requests == ["job-1"])
        yields = await consumer.finish()
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
        # In one part, so that all events have arrived by the first yield.
        events = "".join(event({"choices": [{"delta": {"content": text}}]}) for text in "Hello")
        body = {"type": "http.response.body", "body": events.encode(), "more_body": True}
        await send(body)
        await receive()
        disconnected.set()

    with ScriptedEngine(app=app) as engine:
        job_worker = worker(engine)
        consumer = Consumer(job_worker, chat_job(stream=True, **EXACT))
        await consumer.post_started.wait()
        job_worker.fail_all_jobs(ShuttingDown())
        chunks, error = split_stream_error(await consumer.finish())
        await poll_until(disconnected.is_set)
    assert len(chunks) == 4
    *events, last, done = events_in("".join(chunks))
    assert "".join(texts_in(events)) == "Hello"
    assert (last["error"], done) == (error, "[DONE]")
    assert (error["code"], error["retryable"]) == (503, True)


@pytest.mark.parametrize(
    "payload", [raw_job(stream=False), chat_job(stream=False), chat_job(stream=True)]
)
async def test_a_response_without_output_fails_as_retryable(payload: dict[str, Any]) -> None:
    with ScriptedEngine(HANG) as engine:
        job_worker = worker(engine)
        consumer = Consumer(job_worker, payload)
        await poll_until(lambda: engine.active_requests == ["job-1"])
        job_worker.fail_all_jobs(ShuttingDown())
        yields = await consumer.finish()
        await poll_until(lambda: engine.aborted_requests == ["job-1"])
    assert len(yields) == 1
    assert failure(yields)["retryable"]


async def test_all_running_jobs_fail_and_later_jobs_are_answered() -> None:
    with ScriptedEngine(HANG) as engine:
        job_worker = worker(engine)
        jobs = [Consumer(job_worker, raw_job(stream=True), str(number)) for number in range(30)]
        await poll_until(lambda: len(engine.active_requests) == 30)
        job_worker.fail_all_jobs(ShuttingDown())
        for job in jobs:
            assert failure(await job.finish())["code"] == 503
        assert engine.active_requests == []
        engine.script = tuple(tokens("fine"))
        assert "fine" in str(await Consumer(job_worker, raw_job(stream=True)).finish())


@every_stream
async def test_a_job_counts_as_running_until_its_generator_or_its_task_ends(
    payload: dict[str, Any],
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        job_worker = worker(engine)
        running = watch_metrics("worker_jobs_running")
        cancelled = watch_metrics("worker_jobs_finished_total", code="499")
        RUNNING_JOBS.all_ended.clear()
        generator = job_worker.handle({"id": "a", "input": payload})
        assert running() == [0]
        await anext(generator)
        sdk = Consumer(job_worker, payload, "b")
        await sdk.post_started.wait()
        assert (running(), engine.active_requests) == ([2], ["a", "b"])
        await generator.aclose()
        assert running() == [1]
        await poll_until(lambda: engine.aborted_requests == ["a"])
        assert not RUNNING_JOBS.all_ended.is_set()
        await sdk.cancel()
        assert (running(), RUNNING_JOBS.all_ended.is_set()) == ([0], True)
        await sdk.generator.aclose()
        assert (running(), cancelled()) == ([0], [2]), "counted twice"
