"""A job's record, and its line in the log: what it says, and what it must not say."""

import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.engine.answers import Consumer, answered, every_form
from support.engine.records import ID, lines, record_of
from support.engine.scripted import (
    HANG,
    PROMPT_TOKENS,
    ScriptedEngine,
    chat,
    event,
    raw,
    replying,
    tokens,
    worker,
    yields_of,
)

from worker.dialects.table import ROUTES
from worker.errors import EngineDead, RefusedByEngine
from worker.record import JobRecord

SECRET = "xyzzy"
REFUSED = RefusedByEngine("no", status=429)
FORMS: list[Callable[..., dict[str, Any]]] = [raw, chat, partial(dict, prompts=["a"])]


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="worker"):
        yield


def used(record: JobRecord) -> tuple[int | None, int | None]:
    return record.usage.prompt_tokens, record.usage.output_tokens


async def test_a_job_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    yields = await answered(raw(stream=True), *tokens(*"Hello"))
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


async def test_a_record_that_is_passed_in_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        record = await record_of(engine, raw(stream=True))
    assert (record.route, record.status, record.chunks) == ("raw", 200, 0)
    assert used(record) == (PROMPT_TOKENS, 2)
    assert record.begun_at is not None
    assert record.first_at is not None
    assert record.taken_at <= record.begun_at <= record.first_at <= time.monotonic()
    assert lines(caplog) == []


async def test_a_record_says_whether_the_caller_asked_for_a_stream() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        for form, stream in itertools.product(FORMS, (True, False)):
            assert (await record_of(engine, form(stream=stream))).streamed is stream


# The route and the status:


@pytest.mark.parametrize(
    ("payload", "route", "status"),
    [
        (raw(stream=False), "raw", 200),
        (raw(stream=True, format="llm_engine", max_new_tokens=1), "raw", 200),
        ({"prompts": ["Hi"]}, "list", 200),
        (chat(stream=True), "/v1/chat/completions", 200),
        ({"openai_route": "models?x=1"}, "/v1/models", 200),
        ({"route": f"/v1/models/{SECRET}"}, "/v1/models/{model}", 404),
        ({"route": f"/{SECRET}"}, "unknown", 404),
        ({"route": "/v1/models", "method": SECRET}, "/v1/models", 405),
        ({SECRET: SECRET}, "none", 400),
        ({"prompt": "Hi", SECRET: 1}, "none", 400),
    ],
)
async def test_the_route_is_the_tables_and_the_status_the_answers(
    payload: Any, route: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    await answered(payload, *tokens("a"))
    (line,) = lines(caplog)
    assert (line["route"], line["status"]) == (route, status)
    assert SECRET not in caplog.text


async def test_every_route_has_its_path_as_its_name() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        for route in ROUTES:
            # A model's name, or an id, in place of the parameter.
            path = re.sub(r"{\w+}", SECRET, route.template)
            record = await record_of(engine, {"route": path, "method": "PATCH"})
            assert record.route == route.template


@pytest.mark.parametrize(
    ("payload", "script", "status", "begun"),
    [
        (raw(stream=True), [EngineDead()], 503, False),
        (chat(stream=True), [ValueError("bug")], 500, False),
        (raw(stream=True), [*tokens("a", finish=None), REFUSED], 429, True),
    ],
    ids=["dead", "defect", "broken"],
)
async def test_a_failed_job_has_the_status_of_its_error(
    payload: dict[str, Any], script: list[Any], status: int, begun: bool
) -> None:
    with ScriptedEngine(*script) as engine:
        record = await record_of(engine, payload)
    assert record.status == status
    assert record.begun_at is not None
    assert (record.first_at is not None) is begun


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_job_closed_early_or_cancelled_has_one_line_with_499(
    cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        consumer = Consumer(worker(engine), raw(stream=True))
        await consumer.posting.wait()
        assert lines(caplog) == []
        if cancelled:
            await consumer.cancel()
            assert len(lines(caplog)) == 1
        await consumer.generator.aclose()
        if not cancelled:
            await consumer.end()
    (line,) = lines(caplog)
    assert (line["status"], line["chunks"], line["output_tokens"]) == (499, 1, 1)


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
        {"prompts": [SECRET, SECRET], "stream": True},
        {"openai_route": "/v1/chat/completions", "openai_input": {"messages": MESSAGES}},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": SECRET, "stream": True}},
        {"openai_route": SECRET, "openai_input": {SECRET: SECRET}},
    ],
)
async def test_the_line_has_no_prompt_no_answer_and_no_text_of_the_callers(
    payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert SECRET in str(await answered(payload, *tokens(SECRET, SECRET)))
    (line,) = lines(caplog)
    assert SECRET not in str(line)
    assert SECRET not in caplog.text


# The tokens, wherever they are counted:


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        # Of all choices, and of all items that have an answer.
        (raw(stream=True, sampling_params={"n": 2}), (PROMPT_TOKENS, 5)),
        ({"prompts": ["a", 7, "c"]}, (2 * PROMPT_TOKENS, 10)),
    ],
    ids=["raw", "list"],
)
async def test_the_tokens_of_all_that_a_job_has_are_summed(
    payload: dict[str, Any], expected: tuple[int, int]
) -> None:
    with ScriptedEngine(*tokens("a", "b"), *tokens("x", "y", "z", index=1)) as engine:
        assert used(await record_of(engine, payload)) == expected


@pytest.mark.parametrize(
    ("payload", "end", "cut_by"),
    [
        (raw(stream=False), "length", "DEFAULT_MAX_TOKENS"),
        (raw(stream=True), "length", "DEFAULT_MAX_TOKENS"),
        ({"prompts": ["a"]}, "length", "DEFAULT_MAX_TOKENS"),
        (raw(stream=True), "stop", None),
        (raw(stream=True, sampling_params={"max_tokens": 2}), "length", None),
    ],
)
async def test_the_line_says_that_an_answer_ended_at_the_default_length(
    payload: dict[str, Any], end: str, cut_by: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    await answered(payload, *tokens("a", "b", finish=end))
    (line,) = lines(caplog)
    assert line.get("cut_by") == cut_by


@every_form
async def test_the_tokens_that_vllms_server_counts_are_the_records(stream: bool) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        assert used(await record_of(engine, chat(stream=stream))) == (None, None)
        engine.counted = 31, 212
        assert used(await record_of(engine, chat(stream=stream))) == (31, 212)


RESPONSE = {"usage": {"input_tokens": 5, "output_tokens": 7}}


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        ("/v1/embeddings", {"usage": {"prompt_tokens": 5, "total_tokens": 5}}, (5, None)),
        ("/v1/embeddings", {"usage": {"prompt_tokens": 5, "completion_tokens": 0}}, (5, 0)),
        ("/v1/responses", RESPONSE, (5, 7)),
        ("/v1/responses", {"usage": None}, (None, None)),
        ("/v1/messages/count_tokens", {"input_tokens": 5}, (None, None)),
    ],
)
async def test_tokens_are_read_from_a_body_that_has_them(
    route: str, body: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    with ScriptedEngine(app=replying(json.dumps(body))) as engine:
        engine.bodies = {route: frozenset({"model"})}
        payload = {"openai_route": route, "openai_input": {"model": "demo"}}
        assert used(await record_of(engine, payload)) == expected


@pytest.mark.parametrize("raw_output", ["1", "0"])
async def test_tokens_are_read_from_the_event_that_ends_a_response(
    raw_output: str, caplog: pytest.LogCaptureFixture
) -> None:
    named: dict[str, Any] = {"created": {"response": {}}, "completed": {"response": RESPONSE}}
    events = [f"event: response.{name}\n{event(data)}" for name, data in named.items()]
    app = replying(*events, media_type="text/event-stream")
    body = {"input": "Hi", "stream": True}
    payload = {"openai_route": "/v1/responses", "openai_input": body}
    with ScriptedEngine(app=app) as engine:
        (only,) = await yields_of(engine, payload, RAW_OPENAI_OUTPUT=raw_output)
    assert only == {"1": "".join(events), "0": list(named.values())}[raw_output]
    (line,) = lines(caplog)
    assert (line["prompt_tokens"], line["output_tokens"]) == (5, 7)
