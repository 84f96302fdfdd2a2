"""Requests step by step: jobs handed in, read to their end, and what is lost on the way."""

import json
from typing import Any

import pytest
from support.exchanges import LOST, UNSENT, answered, exchange, failed, report, stream

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping import Dialect, Refusal
from llm_worker_client.steps import Ask, Head, Reply, TookTooLong

DONE = "data: [DONE]\n\n"
MESSAGE_STOP = 'event: message_stop\ndata: {"type": "message_stop"}\n\n'
COMPLETED = 'event: response.completed\ndata: {"type": "response.completed"}\n\n'


def chat(**body: Any) -> Exchange:
    return exchange("POST", "/v1/chat/completions", {"messages": [], **body})


def models() -> Exchange:
    return exchange("GET", "/v1/models")


def test_a_post_is_run_and_answered_by_its_first_yield() -> None:
    found = answered(chat(), report("IN_QUEUE"), stream(), stream({"ä": 1.5}))
    assert found.paths == ["/run", "/stream/j", "/stream/j"]
    assert found.sent()["input"]["openai_route"] == "/v1/chat/completions"
    assert found.head == Head(200, {"content-type": "application/json", "x-request-id": "j"})
    assert found.body == '{"ä":1.5}'.encode()


def test_a_text_and_half_a_surrogate_pair_are_answered() -> None:
    found = answered(models(), report("COMPLETED", output=["# HELP \ud83d"]))
    assert found.head.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.body == b"# HELP ?"


def test_a_read_takes_one_round_trip_and_is_followed_where_that_does_not_suffice() -> None:
    found = answered(models(), report("COMPLETED", output=[{"data": []}]))
    assert (found.paths, found.body) == (["/runsync?wait=90000"], b'{"data":[]}')
    found = answered(models(), report("IN_QUEUE"), stream({"data": []}, status="COMPLETED"))
    assert (found.paths[1:], found.body) == (["/stream/j"], b'{"data":[]}')


def test_what_is_too_large_for_run_goes_to_runsync() -> None:
    found = answered(chat(user="x" * 10_000_000), report("COMPLETED", output=[{}]))
    assert found.asked[0].operation == "runsync"
    assert answered(chat(user="x" * 20_000_000)).head.status == 413


def test_a_stream_is_passed_on_as_it_comes_and_ends_with_its_last_event() -> None:
    job = chat(stream=True)
    found = answered(job, report(), stream("data: 1\n\n"), stream([{"\ud83d": 2}], DONE))
    assert found.head.headers["content-type"].startswith("text/event-stream")
    assert found.body == f'data: 1\n\ndata: {{"?":2}}\n\n{DONE}'.encode()
    assert job.job.over


@pytest.mark.parametrize(
    ("event", "over"),
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
def test_who_hangs_up_after_the_last_event_cancels_nothing(event: Any, over: bool) -> None:
    job = chat(stream=True)
    steps, replies = job.steps(), iter([report(), stream("data: 1\n\n"), stream(event)])
    step, parts = next(steps), 0
    while parts < 2:
        step = steps.send(next(replies) if isinstance(step, Ask) else None)
        parts += isinstance(step, bytes)
    assert job.job.over is over


def test_a_stream_without_a_last_event_is_read_until_nothing_is_left() -> None:
    parts = [stream("event: a\ndata: 1\n\n", status="COMPLETED")] * 2
    found = answered(chat(stream=True), report(), *parts, stream(status="COMPLETED"))
    assert found.body == b"event: a\ndata: 1\n\n" * 2


def test_a_route_that_does_not_stream_answers_whole() -> None:
    found = answered(chat(stream=True), report(), stream({"object": "list"}))
    assert (found.head.headers["content-type"], found.body) == (
        "application/json",
        b'{"object":"list"}',
    )


FULL = {"message": "full", "type": "ServiceUnavailableError", "code": 503, "retryable": True}


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("end", "status", "message", "retry_after"),
    [
        ({"status": "FAILED", "error": failed(404)}, 404, "no", None),
        ({"status": "FAILED", "error": json.dumps({"error": FULL})}, 503, "full", "1"),
        ({"status": "FAILED", "error": {"error": {**FULL, "retry_after": 7}}}, 503, "full", "7"),
        ({"status": "FAILED", "error": json.dumps({"error": {"message": "x"}})}, 500, "x", None),
        ({"status": "FAILED", "error": "a traceback"}, 500, "a traceback", None),
        ({"status": "CANCELLED", "error": ""}, 499, "was cancelled", None),
        ({"status": "TIMED_OUT", "error": ""}, 504, "for its time", None),
    ],
)
def test_a_job_that_fails_before_it_yields_is_an_error_with_its_status(
    streams: bool, end: dict[str, Any], status: int, message: str, retry_after: str | None
) -> None:
    found = answered(chat(stream=streams), report(), stream(**end))
    assert (found.head.status, found.head.headers.get("retry-after")) == (status, retry_after)
    assert message in json.loads(found.body)["error"]["message"]


@pytest.mark.parametrize(
    ("replies", "status", "says"),
    [
        ([report(), stream(status="FAILED"), report("FAILED")], 500, b"without an error"),
        # The platform has not kept the result.
        ([report(), stream(status="COMPLETED"), report("COMPLETED")], 502, b"20 MB"),
        # The platform names no job.
        ([Reply(200, b"{}")], 502, b""),
        # It may have the job, which is not handed in twice.
        ([LOST], 502, b""),
        ([Reply(500, b"oops")], 500, b"oops"),
        ([Reply(401, b"unknown")], 401, b""),
        ([Reply(404, b"unknown")], 404, b""),
    ],
    ids=range(7),
)
def test_what_has_no_answer_is_an_error(replies: list[Any], status: int, says: bytes) -> None:
    found = answered(chat(), *replies)
    assert (found.head.status, says in found.body) == (status, True)


@pytest.mark.parametrize("event", ["data: 1\n\n", "data: one\n\n"])
def test_a_stream_that_breaks_ends_with_the_error(event: str) -> None:
    begun, end = stream(event), stream(status="FAILED", error=failed(503))
    found = answered(chat(stream=True), report(), begun, end)
    last = json.loads(found.body.removeprefix(f"{event}data: ".encode()))
    assert last["error"]["code"] == 503


def test_a_stream_of_llm_engine_that_breaks_ends_with_its_own_error() -> None:
    job = exchange("POST", "/v1/llm/completions-stream?model_endpoint_name=m", {"prompt": ""})
    begun, end = stream("data: 1\n\n"), stream(status="FAILED", error=failed(503))
    found = answered(job, report(), begun, end)
    last = json.loads(found.body.removeprefix(b"data: 1\n\ndata: "))
    assert last == {"request_id": "j", "error": {"status_code": 503, "content": {"error": "no"}}}


def test_an_error_that_the_worker_has_written_in_the_stream_stands_there_once() -> None:
    event = f"data: {failed(503)}\n\n"
    begun, end = stream(event), stream(status="FAILED", error=failed(503))
    assert answered(chat(stream=True), report(), begun, end).body == event.encode()


def test_a_handler_that_does_not_yield_is_answered_from_the_status() -> None:
    ended = report("COMPLETED", output={"a": 1})
    found = answered(chat(), report(), stream(status="COMPLETED"), ended)
    assert (found.paths[-1], found.body) == ("/status/j", b'{"a":1}')


@pytest.mark.parametrize(
    ("dialect", "status", "more"),
    [
        (Dialect.OPENAI, 409, {}),
        (Dialect.ANTHROPIC, 409, {"type": "error"}),
        (Dialect.LLM_ENGINE, 400, {"detail": "no"}),
    ],
)
def test_errors_are_in_callers_words(dialect: Dialect, status: int, more: dict[str, str]) -> None:
    found, body = Refusal(409, "no").in_dialect(dialect)
    error = body.pop("error")
    assert (found, error["message"], error["type"]) == (status, "no", "ConflictError")
    assert {name: body.get(name) for name in more} == more
    assert ("detail" in body) == ("detail" in more)


# What is lost on the way:


def test_chunks_that_were_lost_on_their_way_come_from_the_status_each_once() -> None:
    outputs = ["data: 1\n\n", "data: 2\n\n", DONE]
    running, ended = report("IN_PROGRESS"), report("COMPLETED", output=outputs)
    found = answered(chat(stream=True), report(), stream(outputs[0]), LOST, running, ended)
    assert found.paths[2:] == ["/stream/j", "/status/j", "/status/j"]
    assert found.body == "".join(outputs).encode()


def test_a_server_error_of_a_poll_may_have_taken_chunks_too() -> None:
    ended = report("COMPLETED", output=[{"a": 1}])
    assert answered(chat(), report(), Reply(502, b""), ended).body == b'{"a":1}'


def test_a_poll_that_is_refused_for_now_is_repeated_after_what_the_platform_says() -> None:
    refused = Reply(429, b"", {"retry-after": "3"})
    found = answered(chat(), report(), refused, stream({"a": 1}))
    assert (found.paused, found.body) == ([3.0], b'{"a":1}')


def test_a_job_is_handed_in_again_if_the_platform_has_not_taken_it() -> None:
    found = answered(chat(), UNSENT, Reply(429, b""), report(), stream({}))
    assert found.paths == ["/run", "/run", "/run", "/stream/j"]
    assert found.paused == [0.25, 0.5]


def test_a_read_may_be_handed_in_twice() -> None:
    found = answered(models(), LOST, Reply(503, b""), report("COMPLETED", output=[{}]))
    assert (found.head.status, len(found.asked)) == (200, 3)


def test_what_stays_away_is_given_up_and_may_be_tried_again() -> None:
    found = answered(models(), *[UNSENT] * 6)
    assert (found.head.status, found.head.headers["retry-after"]) == (502, "1")
    assert len(found.paused) == 5


def test_a_caller_without_patience_is_left_and_the_job_is_to_be_cancelled() -> None:
    job = exchange("POST", "/v1/completions", {"prompt": ""}, patience_s=0)
    with pytest.raises(TookTooLong):
        answered(job, report(), stream())
    assert (job.job.id, job.job.over) == ("j", False)
