"""How jobs fail: the error contract."""

import json
import logging
from typing import Any

import pytest
from starlette.types import Message
from support.engine.answers import job_error, run_job
from support.engine.scripted import (
    HANG,
    ScriptedEngine,
    Step,
    chat_job,
    events_in,
    failure,
    raw_job,
    split_stream_error,
    texts_in,
    tokens,
    yields_of,
)

from worker.errors import EngineDead, InvalidInput, RefusedByEngine

SECRET = "a path of the machine, or a prompt"
on_every_path = pytest.mark.parametrize(
    "payload",
    [raw_job(stream=False), raw_job(stream=True), chat_job(stream=False), chat_job(stream=True)],
    ids=["raw", "raw-stream", "openai", "openai-stream"],
)


def only_failure(yields: list[Any]) -> dict[str, Any]:
    assert len(yields) == 1
    return failure(yields)


# tests/unit/job covers all inputs that are refused.
@pytest.mark.parametrize(
    ("payload", "param", "message"),
    [
        (None, None, "accepted inputs"),
        ({"prompt": "Hi", "ключ": 1}, "ключ", "unknown key 'ключ'"),
        ({"prompts": ["Hi"], "sampling_params": {"n": 0}}, "n", "greater than or equal to 1"),
        (InvalidInput("nested too deeply"), None, "nested too deeply"),
    ],
    ids=["no input", "a key", "a list", "unreadable input"],
)
async def test_invalid_input_is_a_400_and_reaches_no_engine(
    payload: Any, param: str | None, message: str
) -> None:
    error = await job_error(payload)
    assert message in error.pop("message")
    assert error == {
        "type": "BadRequestError",
        "param": param,
        "code": 400,
        "retryable": False,
        "request_id": "job-1",
    }


async def test_an_error_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    (chunk,) = await run_job(raw_job(stream=True), InvalidInput("no \ud83d"))
    assert failure([chunk])["message"] == "no ?"
    chunk["error"].encode()  # as the SDK's POST does


@on_every_path
async def test_a_refusal_of_the_engine_keeps_its_status(payload: dict[str, Any]) -> None:
    refusal = RefusedByEngine("too long", status=422, param="max_tokens")
    assert only_failure(await run_job(payload, refusal)) == {
        "message": "too long",
        "type": "UnprocessableEntityError",
        "param": "max_tokens",
        "code": 422,
        "retryable": False,
        "request_id": "job-1",
    }


# A dead engine:


@on_every_path
async def test_a_dead_engine_is_a_retryable_503(payload: dict[str, Any]) -> None:
    with ScriptedEngine(HANG) as engine:
        engine.die()
        yields = await yields_of(engine, payload)
    # This includes a stream of vLLM's server whose first event is the error.
    error = only_failure(yields)
    assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
    assert (error["retryable"], error["request_id"]) == (True, "job-1")
    assert "Send the request again" in error["message"]


# Defects:


@on_every_path
async def test_a_defect_is_a_500_without_internal_details(
    payload: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def app(_: Message, receive: Any, __: Any) -> None:
        await receive()
        raise LookupError(SECRET)

    with ScriptedEngine(LookupError(SECRET), app=app) as engine:
        (chunk,) = await yields_of(engine, payload)
    error = failure([chunk])
    assert (error["code"], error["retryable"], error["request_id"]) == (500, False, "job-1")
    for internal in (SECRET, "LookupError", "Traceback", ".py"):
        assert internal not in chunk["error"]
    # The log has the traceback.
    (record,) = [record for record in caplog.records if record.name == "worker.errors"]
    assert (record.levelno, record.getMessage()) == (
        logging.ERROR,
        "request job-1 failed because of a defect in the worker",
    )
    assert record.exc_info
    assert isinstance(record.exc_info[1], LookupError)


async def test_a_callers_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    await run_job(raw_job(stream=False), RefusedByEngine("no", status=400))
    await job_error({})
    assert [record for record in caplog.records if record.name.startswith("worker")] == []


async def test_an_app_that_does_not_answer_is_a_defect() -> None:
    async def silent(_: Message, receive: Any, __: Any) -> None:
        await receive()

    with ScriptedEngine(app=silent) as engine:
        assert only_failure(await yields_of(engine, chat_job(stream=True)))["code"] == 500


# Errors after the beginning of a stream:


@pytest.mark.parametrize(
    ("step", "code", "retryable"),
    [
        (RefusedByEngine("no", status=400), 400, False),
        (EngineDead(), 503, True),
        (LookupError(SECRET), 500, False),
    ],
    ids=["refused", "dead", "defect"],
)
async def test_a_broken_openai_stream_ends_with_an_error_event(
    step: Step, code: int, retryable: bool
) -> None:
    script = [*tokens("a", "b", finish=None), 0.05, step]
    yields = await run_job(chat_job(stream=True, max_batch_delay_ms=1), *script)
    chunks, stream_error = split_stream_error(yields)
    *events, done = [item for chunk in chunks for item in events_in(chunk)]
    assert (texts_in(events), done) == (["a", "b"], "[DONE]")
    (error,) = [item["error"] for item in events if "error" in item]
    assert error == events[-1]["error"] == stream_error
    assert error.keys() == {"message", "type", "param", "code", "retryable", "request_id"}
    assert (error["code"], error["retryable"], error["request_id"]) == (code, retryable, "job-1")
    assert SECRET not in json.dumps(yields)
