"""Requests step by step: jobs are submitted and read; lost responses are recovered."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.exchanges import (
    LOST,
    UNSENT,
    error_body,
    exchange,
    run_exchange,
    status_reply,
    stream_reply,
)

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping.responses import Dialect, Refusal
from llm_worker_client.steps import (
    Pause,
    PlatformReply,
    PlatformRequest,
    ReadTimedOut,
    ResponseHead,
)

DONE = "data: [DONE]\n\n"
MESSAGE_STOP = 'event: message_stop\ndata: {"type": "message_stop"}\n\n'
COMPLETED = 'event: response.completed\ndata: {"type": "response.completed"}\n\n'


def chat(**body: Any) -> Exchange:
    return exchange("POST", "/v1/chat/completions", {"messages": [], **body})


def models() -> Exchange:
    return exchange("GET", "/v1/models")


def test_a_post_becomes_a_job_whose_first_yield_is_the_response() -> None:
    found = run_exchange(chat(), status_reply("IN_QUEUE"), stream_reply(), stream_reply({"ä": 1.5}))
    assert found.paths == ["/run", "/stream/j", "/stream/j"]
    assert found.request_body()["input"]["openai_route"] == "/v1/chat/completions"
    assert found.head == ResponseHead(
        200, {"content-type": "application/json", "x-request-id": "j"}
    )
    assert found.body == '{"ä":1.5}'.encode()


def test_a_string_with_half_of_a_surrogate_pair_is_a_plain_text_response() -> None:
    found = run_exchange(models(), status_reply("COMPLETED", output=["# HELP \ud83d"]))
    assert found.head.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.body == b"# HELP ?"


def test_a_read_takes_one_round_trip_unless_its_job_takes_too_long() -> None:
    found = run_exchange(models(), status_reply("COMPLETED", output=[{"data": []}]))
    assert (found.paths, found.body) == (["/runsync?wait=1000"], b'{"data":[]}')
    found = run_exchange(
        models(), status_reply("IN_QUEUE"), stream_reply({"data": []}, status="COMPLETED")
    )
    assert (found.paths[1:], found.body) == (["/stream/j"], b'{"data":[]}')


def test_a_body_too_large_for_run_goes_to_runsync() -> None:
    found = run_exchange(chat(user="x" * 10_000_000), status_reply("COMPLETED", output=[{}]))
    assert found.requests[0].operation == "runsync"
    assert run_exchange(chat(user="x" * 20_000_000)).head.status == 413


def test_a_stream_is_passed_on_as_it_arrives_and_ends_with_its_last_event() -> None:
    job = chat(stream=True)
    found = run_exchange(
        job, status_reply(), stream_reply("data: 1\n\n"), stream_reply([{"\ud83d": 2}], DONE)
    )
    assert found.head.headers["content-type"].startswith("text/event-stream")
    assert found.body == f'data: 1\n\ndata: {{"?":2}}\n\n{DONE}'.encode()
    assert job.job.is_over


@pytest.mark.parametrize(
    ("event", "is_over"),
    [
        (DONE, True),
        (MESSAGE_STOP, True),
        ([{"type": "message_stop"}], True),
        (COMPLETED, True),
        ("data: 1\n\n", False),
        ("event: message_stop\n", False),
        ("data: event: x\n\n", False),
    ],
)
def test_a_hang_up_after_the_last_event_cancels_nothing(event: Any, is_over: bool) -> None:
    job = chat(stream=True)
    steps, replies = (
        job.steps(),
        iter([status_reply(), stream_reply("data: 1\n\n"), stream_reply(event)]),
    )
    step, parts = next(steps), 0
    while parts < 2:
        step = steps.send(next(replies) if isinstance(step, PlatformRequest) else None)
        parts += isinstance(step, bytes)
    assert job.job.is_over is is_over


def test_a_stream_without_a_last_event_is_read_until_its_job_has_completed() -> None:
    parts = [stream_reply("event: a\ndata: 1\n\n", status="COMPLETED")] * 2
    found = run_exchange(
        chat(stream=True), status_reply(), *parts, stream_reply(status="COMPLETED")
    )
    assert found.body == b"event: a\ndata: 1\n\n" * 2


def test_a_route_that_does_not_stream_has_a_json_response() -> None:
    found = run_exchange(chat(stream=True), status_reply(), stream_reply({"object": "list"}))
    assert (found.head.headers["content-type"], found.body) == (
        "application/json",
        b'{"object":"list"}',
    )


FULL = {"message": "full", "type": "ServiceUnavailableError", "code": 503, "retryable": True}


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("end", "status", "message", "retry_after"),
    [
        ({"status": "FAILED", "error": error_body(404)}, 404, "no", None),
        ({"status": "FAILED", "error": json.dumps({"error": FULL})}, 503, "full", "1"),
        ({"status": "FAILED", "error": {"error": {**FULL, "retry_after": 7}}}, 503, "full", "7"),
        ({"status": "FAILED", "error": json.dumps({"error": {"message": "x"}})}, 500, "x", None),
        ({"status": "FAILED", "error": "a traceback"}, 500, "a traceback", None),
        ({"status": "CANCELLED", "error": ""}, 499, "was cancelled", None),
        ({"status": "TIMED_OUT", "error": ""}, 504, "ran out of time", None),
    ],
)
def test_a_job_that_fails_before_it_yields_is_an_error_with_its_status(
    streams: bool, end: dict[str, Any], status: int, message: str, retry_after: str | None
) -> None:
    found = run_exchange(chat(stream=streams), status_reply(), stream_reply(**end))
    assert (found.head.status, found.head.headers.get("retry-after")) == (status, retry_after)
    assert message in json.loads(found.body)["error"]["message"]


@pytest.mark.parametrize(
    ("replies", "status", "message"),
    [
        (
            [status_reply(), stream_reply(status="FAILED"), status_reply("FAILED")],
            500,
            b"without an error",
        ),
        # The platform doesn't store the result.
        (
            [status_reply(), stream_reply(status="COMPLETED"), status_reply("COMPLETED")],
            502,
            b"20 MB",
        ),
        # The response has no job id.
        ([PlatformReply(200, b"{}")], 502, b""),
        # The platform may have the job, so it isn't submitted again.
        ([LOST], 502, b""),
        ([PlatformReply(500, b"oops")], 500, b"oops"),
        ([PlatformReply(401, b"unknown")], 401, b""),
        ([PlatformReply(404, b"unknown")], 404, b""),
    ],
    ids=range(7),
)
def test_a_job_without_a_result_is_an_error(
    replies: list[Any], status: int, message: bytes
) -> None:
    found = run_exchange(chat(), *replies)
    assert (found.head.status, message in found.body) == (status, True)


@pytest.mark.parametrize("event", ["data: 1\n\n", "data: one\n\n"])
def test_a_broken_stream_ends_with_the_error(event: str) -> None:
    beginning, end = stream_reply(event), stream_reply(status="FAILED", error=error_body(503))
    found = run_exchange(chat(stream=True), status_reply(), beginning, end)
    last = json.loads(found.body.removeprefix(f"{event}data: ".encode()))
    assert last["error"]["code"] == 503


def test_a_broken_stream_of_llm_engine_ends_with_an_error_in_its_format() -> None:
    job = exchange("POST", "/v1/llm/completions-stream?model_endpoint_name=m", {"prompt": ""})
    beginning, end = (
        stream_reply("data: 1\n\n"),
        stream_reply(status="FAILED", error=error_body(503)),
    )
    found = run_exchange(job, status_reply(), beginning, end)
    last = json.loads(found.body.removeprefix(b"data: 1\n\ndata: "))
    assert last == {"request_id": "j", "error": {"status_code": 503, "content": {"error": "no"}}}


def test_an_error_that_the_worker_wrote_into_the_stream_is_not_repeated() -> None:
    event = f"data: {error_body(503)}\n\n"
    beginning, end = stream_reply(event), stream_reply(status="FAILED", error=error_body(503))
    assert run_exchange(chat(stream=True), status_reply(), beginning, end).body == event.encode()


def test_the_output_of_a_handler_that_does_not_yield_comes_from_the_status() -> None:
    completed = status_reply("COMPLETED", output={"a": 1})
    found = run_exchange(chat(), status_reply(), stream_reply(status="COMPLETED"), completed)
    assert (found.paths[-1], found.body) == ("/status/j", b'{"a":1}')


@pytest.mark.parametrize(
    ("dialect", "status", "more"),
    [
        (Dialect.OPENAI, 409, {}),
        (Dialect.ANTHROPIC, 409, {"type": "error"}),
        (Dialect.LLM_ENGINE, 400, {"detail": "no"}),
    ],
)
def test_an_error_has_the_format_of_its_dialect(
    dialect: Dialect, status: int, more: dict[str, str]
) -> None:
    found, body = Refusal(409, "no").to_status_and_body(dialect)
    error = body.pop("error")
    assert (found, error["message"], error["type"]) == (status, "no", "ConflictError")
    assert {name: body.get(name) for name in more} == more
    assert ("detail" in body) == ("detail" in more)


# Lost responses:


def test_lost_chunks_come_from_the_status_without_repetition() -> None:
    outputs = ["data: 1\n\n", "data: 2\n\n", DONE]
    running, completed = status_reply("IN_PROGRESS"), status_reply("COMPLETED", output=outputs)
    found = run_exchange(
        chat(stream=True), status_reply(), stream_reply(outputs[0]), LOST, running, completed
    )
    assert found.paths[2:] == ["/stream/j", "/status/j", "/status/j"]
    assert found.body == "".join(outputs).encode()


def test_chunks_lost_with_a_server_error_come_from_the_status() -> None:
    completed = status_reply("COMPLETED", output=[{"a": 1}])
    assert (
        run_exchange(chat(), status_reply(), PlatformReply(502, b""), completed).body == b'{"a":1}'
    )


def test_a_rate_limited_poll_is_repeated_after_the_platforms_retry_after() -> None:
    rate_limited = PlatformReply(429, b"", {"retry-after": "3"})
    found = run_exchange(chat(), status_reply(), rate_limited, stream_reply({"a": 1}))
    assert (found.pauses, found.body) == ([3.0], b'{"a":1}')


def test_a_job_that_the_platform_did_not_accept_is_submitted_again() -> None:
    found = run_exchange(chat(), UNSENT, PlatformReply(429, b""), status_reply(), stream_reply({}))
    assert found.paths == ["/run", "/run", "/run", "/stream/j"]
    assert found.pauses == [0.25, 0.5]


def test_a_read_may_be_submitted_twice() -> None:
    found = run_exchange(
        models(), LOST, PlatformReply(503, b""), status_reply("COMPLETED", output=[{}])
    )
    assert (found.head.status, len(found.requests)) == (200, 3)


@pytest.mark.parametrize("status", [504, 520, 522, 524])
def test_a_read_that_the_gateway_gave_up_continues_as_a_job(status: int) -> None:
    found = run_exchange(
        models(), PlatformReply(status, b"<html>"), status_reply(), stream_reply({})
    )
    assert found.paths == ["/runsync?wait=1000", "/run", "/stream/j"]
    assert (found.head.status, found.pauses) == (200, [])


@pytest.mark.parametrize("status", [504, 520, 522, 524])
@pytest.mark.parametrize(
    ("size", "path"), [(0, "/run"), (10_000_000, "/runsync?wait=1000")], ids=["small", "large"]
)
def test_a_job_that_the_gateway_gave_up_is_submitted_once(
    status: int, size: int, path: str
) -> None:
    found = run_exchange(chat(user="x" * size), PlatformReply(status, b"<html>"))
    assert (found.paths, found.head.status) == ([path], 524)
    # OpenAI's client would otherwise retry.
    assert found.head.headers["x-should-retry"] == "false"
    assert "retry-after" not in found.head.headers
    assert b"may still run" in found.body


def test_a_poll_of_a_queued_job_that_the_gateway_gave_up_is_repeated() -> None:
    gave_up, queued = PlatformReply(524, b"<html>"), status_reply("IN_QUEUE")
    chunks = stream_reply("data: 1\n\n"), stream_reply(DONE)
    found = run_exchange(chat(stream=True), status_reply(), gave_up, queued, *chunks)
    assert found.paths[1:] == ["/stream/j", "/status/j", "/stream/j", "/stream/j"]
    assert found.body == f"data: 1\n\n{DONE}".encode()


def test_polls_that_fail_slowly_are_followed_by_pauses(
    let_time_pass: Callable[[], None],
) -> None:
    steps: Any = chat(stream=True).steps()
    next(steps)
    assert steps.send(status_reply()).path == "/stream/j"
    assert steps.send(PlatformReply(500, b"")).path == "/status/j"
    let_time_pass()
    assert isinstance(steps.send(status_reply("IN_QUEUE")), Pause)


def test_an_unreachable_platform_is_a_502_with_a_retry_after() -> None:
    found = run_exchange(models(), *[UNSENT] * 6)
    assert (found.head.status, found.head.headers["retry-after"]) == (502, "1")
    assert len(found.pauses) == 5


def test_a_job_whose_caller_timed_out_still_has_to_be_cancelled() -> None:
    job = exchange("POST", "/v1/completions", {"prompt": ""}, timeout_s=0)
    with pytest.raises(ReadTimedOut):
        run_exchange(job, status_reply(), stream_reply())
    assert (job.job.id, job.job.is_over) == ("j", False)
