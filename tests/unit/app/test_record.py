"""A job's record, and its line in the log: what it says, and what it must not say."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.engine.records import ID, lines, record_of
from support.engine.scripted import (
    HANG,
    PROMPT_TOKENS,
    ScriptedEngine,
    chat,
    raw,
    tokens,
    until,
    worker,
    yields_of,
)

from worker.errors import EngineDead, RefusedByEngine, ShuttingDown
from worker.routes.openai import ROUTES

SECRET = "xyzzy"


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="worker"):
        yield


async def test_a_job_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedEngine(*tokens(*"Hello")) as engine:
        yields = await yields_of(engine, raw(stream=True))
    (line,) = lines(caplog)
    assert 0 <= line["queue_ms"] <= line["first_token_ms"] <= line["total_ms"]
    assert {key: value for key, value in line.items() if not key.endswith("_ms")} == {
        "job": ID,
        "route": "raw",
        "status": 200,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": 5,
        "chunks": len(yields),
        "posts_retried": 0,
    }


async def test_a_record_that_is_passed_in_is_filled_but_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        record = await record_of(engine, raw(stream=True))
    assert (record.route, record.status, record.chunks) == ("raw", 200, 0)
    assert (record.usage.prompt_tokens, record.usage.output_tokens) == (PROMPT_TOKENS, 2)
    assert record.begun_at is not None
    assert record.first_at is not None
    assert record.taken_at <= record.begun_at <= record.first_at <= time.monotonic()
    assert lines(caplog) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_record_says_whether_the_caller_asked_for_a_stream(stream: bool) -> None:
    for payload in (raw(stream=stream), chat(stream=stream), {"prompts": ["a"], "stream": stream}):
        with ScriptedEngine(*tokens("a")) as engine:
            assert (await record_of(engine, payload)).streamed is stream


# What it says of the job:


OPENAI = {"openai_route": "chat/completions?x=1", "openai_input": {"messages": []}}


@pytest.mark.parametrize(
    ("payload", "route", "status"),
    [
        (raw(stream=False), "raw", 200),
        (raw(stream=True, format="llm_engine", max_new_tokens=1), "raw", 200),
        ({"prompts": ["Hi"]}, "list", 200),
        ({"prompts": [7]}, "list", 200),
        (chat(stream=True), "/v1/chat/completions", 200),
        (OPENAI, "/v1/chat/completions", 200),
        ({"route": f"/v1/models/{SECRET}"}, "/v1/models/{model}", 404),
        ({"route": f"/{SECRET}"}, "unknown", 404),
        ({"route": "/v1/models", "method": SECRET}, "/v1/models", 405),
        ({SECRET: SECRET}, "none", 400),
        (None, "none", 400),
        ({"prompt": "Hi", SECRET: 1}, "none", 400),
    ],
)
async def test_the_route_is_the_tables_and_the_status_the_answers(
    payload: Any, route: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, payload)
    (line,) = lines(caplog)
    assert (line["route"], line["status"]) == (route, status)
    assert SECRET not in caplog.text


async def test_every_route_has_its_path_as_its_name() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        for route in ROUTES:
            # A model's name, or an id, in place of the parameter.
            path = re.sub(r"{\w+}", SECRET, route.template)
            payload = {"route": path, "method": "PATCH"}
            assert (await record_of(engine, payload)).route == route.template


@pytest.mark.parametrize("payload", [raw(stream=True), chat(stream=True)])
@pytest.mark.parametrize(
    ("failure", "status"),
    [(RefusedByEngine("no", status=422), 422), (EngineDead(), 503), (ValueError("bug"), 500)],
)
async def test_a_failed_job_has_the_status_of_its_error(
    payload: dict[str, Any], failure: Exception, status: int
) -> None:
    with ScriptedEngine(failure) as engine:
        record = await record_of(engine, payload)
    assert record.status == status
    assert record.begun_at is not None
    assert record.first_at is None


async def test_a_stream_that_broke_has_the_status_of_its_error() -> None:
    broken = [*tokens("a", finish=None), RefusedByEngine("no", status=429)]
    for payload in (raw(stream=True), chat(stream=True)):
        with ScriptedEngine(*broken) as engine:
            record = await record_of(engine, payload)
        assert record.status == 429
        assert record.first_at is not None


async def test_an_answer_that_is_ended_is_503(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedEngine(HANG) as engine:
        one = worker(engine)

        async def run() -> None:
            async for _ in one.handle({"id": ID, "input": raw(stream=True)}):
                pass

        task = asyncio.create_task(run())
        assert await until(lambda: engine.generating == [ID])
        one.end_all(ShuttingDown())
        await task
    assert [line["status"] for line in lines(caplog)] == [503]


async def test_a_job_that_was_closed_early_has_one_line_with_499(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        generator = worker(engine).handle({"id": ID, "input": raw(stream=True)})
        await anext(generator)
        assert lines(caplog) == []
        await generator.aclose()
    (line,) = lines(caplog)
    assert (line["status"], line["chunks"], line["output_tokens"]) == (499, 1, 1)


@pytest.mark.parametrize("in_post", [False, True])
async def test_a_job_whose_task_was_cancelled_has_one_line_with_499(
    in_post: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a", "b", finish=None), HANG) as engine:
        generator = worker(engine).handle({"id": ID, "input": raw(stream=True)})
        yields = 0

        async def sdk() -> None:
            nonlocal yields
            # Not closed, as by the SDK.
            async for _ in generator:
                yields += 1
                if in_post and yields == 2:
                    await asyncio.Event().wait()

        task = asyncio.create_task(sdk())
        assert await until(lambda: yields == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(lines(caplog)) == 1
        await generator.aclose()
    (line,) = lines(caplog)
    assert (line["status"], line["chunks"], line["output_tokens"]) == (499, 2, 2)


@pytest.mark.parametrize(
    ("payload", "status"),
    [(raw(stream=False), 200), (chat(stream=False), 200), ({"prompt": 7}, 400)],
)
async def test_a_consumer_who_takes_the_only_yield_and_closes_had_the_answer(
    payload: dict[str, Any], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        chunks = worker(engine).handle({"id": ID, "input": payload})
        await anext(chunks)
        await chunks.aclose()
    assert [line["status"] for line in lines(caplog)] == [status]


MESSAGES = [{"role": SECRET, "content": SECRET}]


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": SECRET, "stream": True},
        {"messages": MESSAGES, "model": SECRET, "lora": SECRET},
        {"prompt": SECRET, "format": "llm_engine", "max_new_tokens": 1},
        {"prompts": [SECRET, SECRET], "stream": True},
        {"openai_route": "/v1/chat/completions", "openai_input": {"messages": MESSAGES}},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": SECRET, "stream": True}},
        {"openai_route": SECRET, "openai_input": {SECRET: SECRET}},
        {"prompt": "Hi", SECRET: SECRET},
    ],
)
async def test_the_line_has_no_prompt_no_answer_and_no_text_of_the_callers(
    payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens(SECRET, SECRET)) as engine:
        assert SECRET in str(await yields_of(engine, payload))
    (line,) = lines(caplog)
    assert SECRET not in str(line)
    assert SECRET not in caplog.text
