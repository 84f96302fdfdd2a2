"""A job's record and its line in the log: their content, and texts that must not be in them."""

import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.engine.answers import JOB_ID, Consumer, every_form, record_fields, record_of, run_job
from support.engine.scripted import (
    HANG,
    PROMPT_TOKENS,
    ScriptedEngine,
    chat_job,
    event,
    raw_job,
    static_app,
    tokens,
    worker,
    yields_of,
)

from worker.dialects.table import ROUTES
from worker.errors import EngineDead, RefusedByEngine
from worker.record import JobRecord

SECRET = "xyzzy"
REFUSED = RefusedByEngine("no", status=429)
FORMS: list[Callable[..., dict[str, Any]]] = [raw_job, chat_job, partial(dict, prompts=["a"])]


@pytest.fixture(autouse=True)
def enable_info_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="worker"):
        yield


def token_counts(record: JobRecord) -> tuple[int | None, int | None]:
    return record.usage.prompt_tokens, record.usage.output_tokens


async def test_a_job_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    yields = await run_job(raw_job(stream=True), *tokens(*"Hello"))
    (line,) = record_fields(caplog)
    assert 0 <= line["queue_ms"] <= line["first_token_ms"] <= line["total_ms"]
    assert {key: value for key, value in line.items() if not key.endswith("_ms")} == {
        "job": JOB_ID,
        "route": "raw",
        "status": 200,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": 5,
        "chunks": len(yields),
        "posts_retried": 0,
    }


async def test_a_record_passed_by_the_caller_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        record = await record_of(engine, raw_job(stream=True))
    assert (record.route, record.status, record.chunks) == ("raw", 200, 0)
    assert token_counts(record) == (PROMPT_TOKENS, 2)
    assert record.submitted_at is not None
    assert record.first_piece_at is not None
    assert record.received_at <= record.submitted_at <= record.first_piece_at <= time.monotonic()
    assert record_fields(caplog) == []


@pytest.mark.parametrize("setting", ["0", "1"])
async def test_a_record_has_whether_it_is_streamed_and_only_the_result_has_the_answer(
    setting: str,
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        for form, stream in itertools.product(FORMS, (True, False)):
            record = await record_of(engine, form(stream=stream), STREAM_WHOLE_ANSWERS=setting)
            assert record.streamed is stream
            # A list may have several yields.
            has_one_yield = not stream and "prompts" not in form(stream=stream)
            assert record.is_whole is (has_one_yield and setting == "0")


# The route and the status:


@pytest.mark.parametrize(
    ("payload", "route", "status"),
    [
        (raw_job(stream=False), "raw", 200),
        (raw_job(stream=True, format="llm_engine", max_new_tokens=1), "raw", 200),
        ({"prompts": ["Hi"]}, "list", 200),
        (chat_job(stream=True), "/v1/chat/completions", 200),
        ({"openai_route": "models?x=1"}, "/v1/models", 200),
        ({"route": f"/v1/models/{SECRET}"}, "/v1/models/{model}", 404),
        ({"route": f"/{SECRET}"}, "unknown", 404),
        ({"route": "/v1/models", "method": SECRET}, "/v1/models", 405),
        ({SECRET: SECRET}, "none", 400),
        ({"prompt": "Hi", SECRET: 1}, "none", 400),
    ],
)
async def test_the_line_has_the_route_of_the_table_and_the_status_of_the_response(
    payload: Any, route: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    await run_job(payload, *tokens("a"))
    (line,) = record_fields(caplog)
    assert (line["route"], line["status"]) == (route, status)
    assert SECRET not in caplog.text


async def test_every_route_is_recorded_with_its_template() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        for route in ROUTES:
            # Every parameter of the path gets a value that must not be logged.
            path = re.sub(r"{\w+}", SECRET, route.path_template)
            record = await record_of(engine, {"route": path, "method": "PATCH"})
            assert record.route == route.path_template


@pytest.mark.parametrize(
    ("payload", "script", "status", "has_output"),
    [
        (raw_job(stream=True), [EngineDead()], 503, False),
        (chat_job(stream=True), [ValueError("bug")], 500, False),
        (raw_job(stream=True), [*tokens("a", finish=None), REFUSED], 429, True),
    ],
    ids=["dead", "defect", "broken"],
)
async def test_a_failed_job_has_the_status_of_its_error(
    payload: dict[str, Any], script: list[Any], status: int, has_output: bool
) -> None:
    with ScriptedEngine(*script) as engine:
        record = await record_of(engine, payload)
    assert record.status == status
    assert record.submitted_at is not None
    assert (record.first_piece_at is not None) is has_output


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_job_closed_early_or_cancelled_logs_one_line_with_499(
    is_cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a", finish=None), HANG) as engine:
        consumer = Consumer(worker(engine), raw_job(stream=True))
        await consumer.post_started.wait()
        assert record_fields(caplog) == []
        if is_cancelled:
            await consumer.cancel()
            assert len(record_fields(caplog)) == 1
        await consumer.generator.aclose()
        if not is_cancelled:
            await consumer.finish()
    (line,) = record_fields(caplog)
    assert (line["status"], line["chunks"], line["output_tokens"]) == (499, 1, 1)


@pytest.mark.parametrize(
    ("payload", "status"),
    [(raw_job(stream=False), 200), (chat_job(stream=False), 200), ({"prompt": 7}, 400)],
)
async def test_a_job_closed_after_its_only_yield_has_the_status_of_its_response(
    payload: dict[str, Any], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        chunks = worker(engine).handle({"id": JOB_ID, "input": payload})
        await anext(chunks)
        await chunks.aclose()
    assert [line["status"] for line in record_fields(caplog)] == [status]


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
async def test_the_line_has_no_prompt_no_output_and_no_text_of_the_caller(
    payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert SECRET in str(await run_job(payload, *tokens(SECRET, SECRET)))
    (line,) = record_fields(caplog)
    assert SECRET not in str(line)
    assert SECRET not in caplog.text


# Token counts:


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        # The sum of all choices, or of all items that have a response.
        (raw_job(stream=True, sampling_params={"n": 2}), (PROMPT_TOKENS, 5)),
        ({"prompts": ["a", 7, "c"]}, (2 * PROMPT_TOKENS, 10)),
    ],
    ids=["raw", "list"],
)
async def test_the_tokens_of_all_choices_and_items_are_summed(
    payload: dict[str, Any], expected: tuple[int, int]
) -> None:
    with ScriptedEngine(*tokens("a", "b"), *tokens("x", "y", "z", index=1)) as engine:
        assert token_counts(await record_of(engine, payload)) == expected


@pytest.mark.parametrize(
    ("payload", "finish_reason", "cut_by"),
    [
        (raw_job(stream=False), "length", "DEFAULT_MAX_TOKENS"),
        (raw_job(stream=True), "length", "DEFAULT_MAX_TOKENS"),
        ({"prompts": ["a"]}, "length", "DEFAULT_MAX_TOKENS"),
        (raw_job(stream=True), "stop", None),
        (raw_job(stream=True, sampling_params={"max_tokens": 2}), "length", None),
    ],
)
async def test_the_line_has_cut_by_if_the_default_length_ended_the_output(
    payload: dict[str, Any],
    finish_reason: str,
    cut_by: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await run_job(payload, *tokens("a", "b", finish=finish_reason))
    (line,) = record_fields(caplog)
    assert line.get("cut_by") == cut_by


@every_form
async def test_the_record_has_the_tokens_that_vllms_server_counts(stream: bool) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        assert token_counts(await record_of(engine, chat_job(stream=stream))) == (None, None)
        engine.token_counts = 31, 212
        assert token_counts(await record_of(engine, chat_job(stream=stream))) == (31, 212)


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
async def test_tokens_are_read_from_the_usage_of_a_body(
    route: str, body: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    with ScriptedEngine(app=static_app(json.dumps(body))) as engine:
        engine.bodies = {route: frozenset({"model"})}
        payload = {"openai_route": route, "openai_input": {"model": "demo"}}
        assert token_counts(await record_of(engine, payload)) == expected


@pytest.mark.parametrize(
    ("end", "raw_output"), [("completed", "1"), ("completed", "0"), ("incomplete", "1")]
)
async def test_tokens_are_read_from_the_event_that_ends_a_response(
    end: str, raw_output: str, caplog: pytest.LogCaptureFixture
) -> None:
    data_by_name: dict[str, Any] = {"created": {"response": {}}, end: {"response": RESPONSE}}
    events = [f"event: response.{name}\n{event(data)}" for name, data in data_by_name.items()]
    app = static_app(*events, media_type="text/event-stream")
    body = {"input": "Hi", "stream": True}
    payload = {"openai_route": "/v1/responses", "openai_input": body}
    with ScriptedEngine(app=app) as engine:
        (chunk,) = await yields_of(engine, payload, RAW_OPENAI_OUTPUT=raw_output)
    assert chunk == {"1": "".join(events), "0": list(data_by_name.values())}[raw_output]
    (line,) = record_fields(caplog)
    assert (line["prompt_tokens"], line["output_tokens"]) == (5, 7)
