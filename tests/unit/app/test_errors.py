"""How jobs fail: the error contract."""

import json
import logging
from typing import Any

import pytest
from starlette.types import ASGIApp, Message
from support.engine.answers import answered, refused
from support.engine.scripted import HANG, ScriptedEngine, Step, chat, raw, tokens, yields_of
from support.engine.yields import broken_stream, events_in, failure, texts_in

from worker.errors import EngineDead, InvalidInput, RefusedByEngine

SECRET = "a path of the machine, or a prompt"
PAYLOADS = [raw(stream=False), raw(stream=True), chat(stream=False), chat(stream=True)]
NAMES = ["raw", "raw-stream", "openai", "openai-stream"]
on_every_path = pytest.mark.parametrize("payload", PAYLOADS, ids=NAMES)


def only_failure(yields: list[Any]) -> dict[str, Any]:
    assert len(yields) == 1
    return failure(yields)


def failing_with(error: Exception) -> ASGIApp:
    async def app(_: Message, receive: Any, __: Any) -> None:
        await receive()
        raise error

    return app


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        (None, None),
        ({}, None),
        ("Hi", None),
        ({"prompt": 5}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": "Hi", "sampling_params": {"n": 0}}, "n"),
        ({"prompt": "Hi", "ключ": 1}, "ключ"),
        ({"prompts": ["Hi"], "sampling_params": [{}, {}]}, "sampling_params"),
        ({"format": "llm_engine", "prompt": "Hi", "stream": True, "temperature": 2}, "temperature"),
        ({"fine_tune": {}}, "fine_tune"),
    ],
    ids=str,
)
async def test_invalid_input_is_a_400_and_reaches_no_engine(
    payload: Any, param: str | None
) -> None:
    error = await refused(payload)
    assert error == {
        "message": error["message"],
        "type": "BadRequestError",
        "param": param,
        "code": 400,
        "retryable": False,
        "request_id": "job-1",
    }


async def test_the_text_of_an_error_keeps_its_characters() -> None:
    (chunk,) = await answered({"prompt": "Hi", "ключ": 1})
    assert "ключ" in chunk["error"]


async def test_an_error_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    (chunk,) = await answered(raw(stream=True), InvalidInput("no \ud83d"))
    assert failure([chunk])["message"] == "no ?"
    chunk["error"].encode()  # as the SDK's POST does


async def test_a_job_that_could_not_be_read_fails_with_the_reason() -> None:
    error = await refused(InvalidInput("nested too deeply"))
    assert (error["code"], error["message"]) == (400, "nested too deeply")


@pytest.mark.parametrize("route", ["/v1/nothing", "/update_weights", "/v1/load_lora_adapter", ""])
async def test_a_route_that_is_not_served_is_a_404_that_lists_those_that_are(route: str) -> None:
    error = await refused({"openai_route": route, "openai_input": {}})
    assert (error["code"], error["type"]) == (404, "NotFoundError")
    for named in (repr(route), "/v1/chat/completions", "/v1/completions", "/v1/models"):
        assert named in error["message"]


@on_every_path
async def test_what_the_engine_refuses_keeps_its_status(payload: dict[str, Any]) -> None:
    refusal = RefusedByEngine("too long", status=422, param="max_tokens")
    assert only_failure(await answered(payload, refusal)) == {
        "message": "too long",
        "type": "UnprocessableEntityError",
        "param": "max_tokens",
        "code": 422,
        "retryable": False,
        "request_id": "job-1",
    }


# A dead engine:


@on_every_path
async def test_a_dead_engine_is_a_503_worth_another_try(payload: dict[str, Any]) -> None:
    with ScriptedEngine(HANG) as engine:
        engine.die()
        yields = await yields_of(engine, payload)
    # Also in a stream of vLLM's server whose first event is an error.
    error = only_failure(yields)
    assert (error["code"], error["type"], error["retryable"], error["request_id"]) == (
        503,
        "ServiceUnavailableError",
        True,
        "job-1",
    )
    assert "Send the request again" in error["message"]


@pytest.mark.parametrize("payload", PAYLOADS[::2], ids=NAMES[::2])
async def test_an_engine_that_dies_in_an_answer_is_a_503(payload: dict[str, Any]) -> None:
    error = only_failure(await answered(payload, *tokens("a", finish=None), EngineDead()))
    assert (error["code"], error["retryable"]) == (503, True)


# Defects:


@on_every_path
async def test_a_defect_is_a_500_without_internal_details(payload: dict[str, Any]) -> None:
    app = failing_with(LookupError(SECRET))
    with ScriptedEngine(LookupError(SECRET), app=app) as engine:
        (chunk,) = await yields_of(engine, payload)
    error = failure([chunk])
    assert (error["code"], error["retryable"], error["request_id"]) == (500, False, "job-1")
    for inside in (SECRET, "LookupError", "Traceback", ".py"):
        assert inside not in chunk["error"]


async def test_a_defect_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    await answered(raw(stream=False), LookupError("inside"))
    (record,) = [record for record in caplog.records if record.name == "worker.errors"]
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "request job-1 met a defect")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


async def test_an_error_of_the_callers_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    await answered(raw(stream=False), RefusedByEngine("no", status=400))
    await refused({})
    assert [record for record in caplog.records if record.name.startswith("worker")] == []


async def test_an_app_that_does_not_answer_is_a_defect() -> None:
    async def silent(_: Message, receive: Any, __: Any) -> None:
        await receive()

    with ScriptedEngine(app=silent) as engine:
        assert only_failure(await yields_of(engine, chat(stream=True)))["code"] == 500


# After the stream began:

broken = pytest.mark.parametrize(
    ("step", "code", "retryable"),
    [
        (RefusedByEngine("no", status=400), 400, False),
        (EngineDead(), 503, True),
        (LookupError(SECRET), 500, False),
    ],
    ids=["refused", "dead", "defect"],
)


@broken
@pytest.mark.parametrize("raw_output", ["1", "0"])
async def test_a_broken_openai_stream_ends_with_an_error_event(
    step: Step, code: int, retryable: bool, raw_output: str
) -> None:
    script = [*tokens("a", "b", finish=None), 0.05, step]
    payload = chat(stream=True, max_batch_delay_ms=1)
    yields = await answered(payload, *script, RAW_OPENAI_OUTPUT=raw_output)
    begun, failed_with = broken_stream(yields)
    if raw_output == "1":
        *events, done = [item for chunk in begun for item in events_in(chunk)]
        assert done == "[DONE]"
    else:
        events = [item for chunk in begun for item in chunk]
    assert texts_in(events) == ["a", "b"]
    (error,) = [item["error"] for item in events if "error" in item]
    assert error == events[-1]["error"] == failed_with
    assert error.keys() == {"message", "type", "param", "code", "retryable", "request_id"}
    assert (error["code"], error["retryable"], error["request_id"]) == (code, retryable, "job-1")
    assert SECRET not in json.dumps(yields)


@broken
async def test_a_broken_raw_stream_fails_the_job(step: Step, code: int, retryable: bool) -> None:
    script = [*tokens("a", "b", finish=None), 0.05, step]
    yields = await answered(raw(stream=True, max_batch_delay_ms=1), *script)
    texts = [text for chunk in yields[:-1] for text in chunk["choices"][0]["tokens"]]
    assert texts == ["a", "b"]
    error = failure(yields)
    assert (error["code"], error["retryable"], error["request_id"]) == (code, retryable, "job-1")
    assert SECRET not in json.dumps(yields)


@on_every_path
async def test_a_worker_answers_after_a_failure(payload: dict[str, Any]) -> None:
    with ScriptedEngine(LookupError()) as engine:
        await yields_of(engine, payload)
        engine.script = tuple(tokens("fine"))
        assert "fine" in json.dumps(await yields_of(engine, payload))
