"""Requests step by step: jobs handed in, read to their end, and what is lost on the way."""

import json
from typing import Any

import pytest
from support.exchanges import LOST, UNSENT, exchange, failed, report, stream, told

from llm_worker_client.exchange import Exchange
from llm_worker_client.steps import Ask, Reply, TookTooLong

DONE = "data: [DONE]\n\n"


def chat(**body: Any) -> Exchange:
    return exchange("POST", "/v1/chat/completions", {"messages": [], **body})


def models() -> Exchange:
    return exchange("GET", "/v1/models")


def test_a_post_is_run_and_answered_by_its_first_yield() -> None:
    found = told(chat(), report("IN_QUEUE"), stream(), stream({"a": 1}))
    assert found.paths == ["/run", "/stream/j", "/stream/j"]
    assert found.sent()["input"]["openai_route"] == "/v1/chat/completions"
    assert (found.head.status, found.body) == (200, b'{"a":1}')


def test_a_read_takes_one_round_trip() -> None:
    found = told(models(), report("COMPLETED", output=[{"data": []}]))
    assert found.paths == ["/runsync?wait=90000"]
    assert found.body == b'{"data":[]}'


def test_a_read_that_runsync_does_not_wait_for_is_followed() -> None:
    found = told(models(), report("IN_QUEUE"), stream({"data": []}, status="COMPLETED"))
    assert (found.paths[1:], found.body) == (["/stream/j"], b'{"data":[]}')


def test_what_is_too_large_for_run_goes_to_runsync() -> None:
    found = told(chat(user="x" * 10_000_000), report("COMPLETED", output=[{}]))
    assert found.asked[0].operation == "runsync"
    assert told(chat(user="x" * 20_000_000)).head.status == 413


def test_a_stream_is_passed_on_as_it_comes_and_ends_with_its_last_event() -> None:
    job = chat(stream=True)
    found = told(job, report(), stream("data: 1\n\n"), stream("data: 2\n\n", DONE))
    assert found.head.headers["content-type"].startswith("text/event-stream")
    assert found.body == f"data: 1\n\ndata: 2\n\n{DONE}".encode()
    assert job.job.over


LAST = [
    DONE,
    'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    'event: response.completed\ndata: {"type": "response.completed"}\n\n',
]


@pytest.mark.parametrize("last", LAST)
def test_who_hangs_up_after_the_last_event_cancels_nothing(last: str) -> None:
    job = chat(stream=True)
    steps, replies = job.steps(), iter([report(), stream(f"data: 1\n\n{last}")])
    step = next(steps)
    while not isinstance(step, bytes):
        step = steps.send(next(replies) if isinstance(step, Ask) else None)
    assert job.job.over


@pytest.mark.parametrize("event", ["data: 1\n\n", "event: message_stop\n", "data: event: x\n\n"])
def test_who_hangs_up_before_it_cancels(event: str) -> None:
    job = chat(stream=True)
    steps, replies = job.steps(), iter([report(), stream(f"data: 1\n\n{event}")])
    step = next(steps)
    while not isinstance(step, bytes):
        step = steps.send(next(replies) if isinstance(step, Ask) else None)
    assert not job.job.over


def test_a_platform_that_names_no_job_is_told() -> None:
    assert told(chat(), Reply(200, b"{}")).head.status == 502


def test_a_stream_without_a_last_event_is_read_until_nothing_is_left() -> None:
    parts = [stream("event: a\ndata: 1\n\n", status="COMPLETED")] * 2
    found = told(chat(stream=True), report(), *parts, stream(status="COMPLETED"))
    assert found.body == b"event: a\ndata: 1\n\n" * 2


def test_a_route_that_does_not_stream_answers_whole() -> None:
    found = told(chat(stream=True), report(), stream({"object": "list"}))
    assert (found.head.headers["content-type"], found.body) == (
        "application/json",
        b'{"object":"list"}',
    )


@pytest.mark.parametrize("streams", [True, False])
def test_a_job_that_fails_before_it_yields_is_an_error_with_its_status(streams: bool) -> None:
    end = stream(status="FAILED", error=failed(404))
    found = told(chat(stream=streams), report(), end)
    assert found.head.status == 404
    assert json.loads(found.body)["error"]["message"] == "no"


def test_a_stream_that_breaks_ends_with_the_error() -> None:
    begun, end = stream("data: 1\n\n"), stream(status="FAILED", error=failed(503))
    found = told(chat(stream=True), report(), begun, end)
    last = json.loads(found.body.removeprefix(b"data: 1\n\ndata: "))
    assert last["error"]["code"] == 503


def test_an_error_that_the_worker_has_told_in_the_stream_is_told_once() -> None:
    event = f"data: {failed(503)}\n\n"
    begun, end = stream(event), stream(status="FAILED", error=failed(503))
    assert told(chat(stream=True), report(), begun, end).body == event.encode()


def test_a_result_that_the_platform_has_not_kept_is_told() -> None:
    end = stream(status="COMPLETED")
    found = told(chat(), report(), end, report("COMPLETED"))
    assert (found.head.status, b"20 MB" in found.body) == (502, True)


def test_a_handler_that_does_not_yield_is_answered_from_the_status() -> None:
    end = stream(status="COMPLETED")
    found = told(chat(), report(), end, report("COMPLETED", output={"a": 1}))
    assert (found.paths[-1], found.body) == ("/status/j", b'{"a":1}')


# What is lost on the way:


def test_chunks_that_were_lost_on_their_way_come_from_the_status_each_once() -> None:
    outputs = ["data: 1\n\n", "data: 2\n\n", DONE]
    running, ended = report("IN_PROGRESS"), report("COMPLETED", output=outputs)
    found = told(chat(stream=True), report(), stream(outputs[0]), LOST, running, ended)
    assert found.paths[2:] == ["/stream/j", "/status/j", "/status/j"]
    assert found.body == "".join(outputs).encode()


def test_a_server_error_of_a_poll_may_have_taken_chunks_too() -> None:
    ended = report("COMPLETED", output=[{"a": 1}])
    assert told(chat(), report(), Reply(502, b""), ended).body == b'{"a":1}'


def test_a_poll_that_is_refused_for_now_is_repeated_after_what_the_platform_says() -> None:
    refused = Reply(429, b"", {"retry-after": "3"})
    found = told(chat(), report(), refused, stream({"a": 1}))
    assert (found.paused, found.body) == ([3.0], b'{"a":1}')


def test_a_job_is_not_handed_in_twice_if_the_platform_may_have_it() -> None:
    found = told(chat(), LOST)
    assert (found.head.status, len(found.asked)) == (502, 1)
    found = told(chat(), Reply(500, b"oops"))
    assert (found.head.status, b"oops" in found.body) == (500, True)


def test_a_job_is_handed_in_again_if_the_platform_has_not_taken_it() -> None:
    found = told(chat(), UNSENT, Reply(429, b""), report(), stream({}))
    assert found.paths == ["/run", "/run", "/run", "/stream/j"]
    assert found.paused == [0.25, 0.5]


def test_a_read_may_be_handed_in_twice() -> None:
    found = told(models(), LOST, Reply(503, b""), report("COMPLETED", output=[{}]))
    assert (found.head.status, len(found.asked)) == (200, 3)


def test_what_stays_away_is_given_up_and_may_be_tried_again() -> None:
    found = told(models(), *[UNSENT] * 6)
    assert (found.head.status, found.head.headers["retry-after"]) == (502, "1")
    assert len(found.paused) == 5


@pytest.mark.parametrize("status", [401, 404])
def test_what_the_platform_refuses_is_passed_on(status: int) -> None:
    found = told(chat(), Reply(status, b"unknown"))
    assert found.head.status == status


def test_a_caller_without_patience_is_left_and_the_job_is_to_be_cancelled() -> None:
    job = exchange("POST", "/v1/completions", {"prompt": ""}, patience_s=0)
    with pytest.raises(TookTooLong):
        told(job, report(), stream())
    assert (job.job.id, job.job.over) == ("j", False)
