"""Requests step by step: jobs, files and forwarded calls; lost responses are recovered."""

import base64
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping import responses
from llm_worker_client.mapping.requests import CONTENT_PART_BYTES, Request
from llm_worker_client.mapping.responses import Dialect, Refusal
from llm_worker_client.steps import (
    Pause,
    PlatformReply,
    PlatformRequest,
    PlatformUnreachable,
    ReadTimedOut,
    ResponseHead,
)

LOST = PlatformUnreachable("reset", may_have_arrived=True)
UNSENT = PlatformUnreachable("refused", may_have_arrived=False)


def status_reply(status: str = "IN_PROGRESS", **more: Any) -> PlatformReply:
    return PlatformReply(200, json.dumps({"id": "j", "status": status, **more}).encode())


def stream_reply(*outputs: Any, status: str = "IN_PROGRESS", **more: Any) -> PlatformReply:
    return status_reply(status, stream=[{"output": output} for output in outputs], **more)


def error_body(code: int) -> str:
    error = {"message": "no", "type": "T", "code": code, "retryable": code >= 500}
    return json.dumps({"error": error})


@dataclass
class ExchangeResult:
    """The response to a caller, and the client's requests to the platform."""

    requests: list[PlatformRequest] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    head: ResponseHead = field(default_factory=lambda: ResponseHead(0))
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def request_body(self, index: int = 0) -> Any:
        return json.loads(self.requests[index].content or b"null")


def run_exchange(
    exchange: Exchange, *replies: PlatformReply | PlatformUnreachable
) -> ExchangeResult:
    """Take all steps of an exchange with these replies, all of which must be used."""
    remaining = iter(replies)
    steps, result = exchange.steps(), ExchangeResult()
    step = next(steps, None)
    while step is not None:
        reply: Any = None
        if isinstance(step, PlatformRequest):
            result.requests.append(step)
            reply = next(remaining)
        elif isinstance(step, Pause):
            result.pauses.append(step.seconds)
        elif isinstance(step, ResponseHead):
            result.head = step
        elif isinstance(step, bytes):
            result.parts.append(step)
        try:
            broken = isinstance(reply, Exception)
            step = steps.throw(reply) if broken else steps.send(reply)
        except StopIteration:
            step = None
    assert next(remaining, None) is None
    return result


def exchange(method: str, target: str, body: Any = None, **options: Any) -> Exchange:
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    return Exchange(Request(method, target, headers, content), "abc", **options)


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


# The content of files:

BASIC = {"authorization": "Basic cm9vdDo="}
NOT_FOUND = status_reply("FAILED", error=error_body(404))


def content_reply(*contents: bytes) -> PlatformReply:
    encoded = [{"content_base64": base64.b64encode(one).decode()} for one in contents]
    return status_reply("COMPLETED", output=encoded)


def content_request(**headers: str) -> Exchange:
    return exchange("GET", "/v1/files/f/content", headers=headers)


def test_content_is_read_in_parts_until_one_is_not_full() -> None:
    half = b"x" * (CONTENT_PART_BYTES // 2)
    found = run_exchange(content_request(), content_reply(half, half), content_reply(b"end"))
    assert found.body == b"x" * CONTENT_PART_BYTES + b"end"
    assert [found.request_body(n)["input"]["openai_route"].partition("?")[2] for n in (0, 1)] == [
        f"offset={offset}&limit={CONTENT_PART_BYTES}" for offset in (0, CONTENT_PART_BYTES)
    ]
    assert found.head.headers["content-type"] == "application/octet-stream"


def test_empty_content_is_a_response() -> None:
    found = run_exchange(content_request(accept="application/binary"), content_reply(b""))
    assert (found.head.status, found.body) == (200, b"")


@pytest.mark.parametrize("headers", [BASIC, {"accept": "application/json"}])
def test_content_for_llm_engine_includes_the_files_id(headers: dict[str, str]) -> None:
    found = run_exchange(
        content_request(**headers), content_reply("ä".encode()[:1], "ä".encode()[1:])
    )
    assert json.loads(found.body) == {"id": "f", "content": "ä"}


LONG_TEXT = "a" + 'ä€😀"\\\n\x07\x7f\u2028' * 60_000


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (LONG_TEXT.encode(), LONG_TEXT),
        # Not UTF-8: at the beginning, at the end, and within a character at the end.
        *(
            (bytes(one), base64.b64encode(one).decode())
            for one in (
                b"\xff" + LONG_TEXT.encode(),
                LONG_TEXT.encode() + b"\xff",
                LONG_TEXT.encode() + "€".encode()[:2],
            )
        ),
    ],
    ids=["text", "binary", "binary end", "half a character"],
)
def test_large_content_is_sent_as_json_in_parts(content: bytes, text: str) -> None:
    halves = [content[:500_001], content[500_001:]]
    found = run_exchange(content_request(**BASIC), content_reply(*halves))
    assert json.loads(found.body) == {"id": "f", "content": text}
    assert max(map(len, found.parts)) < 400_000


@pytest.mark.parametrize("headers", [{}, BASIC])
def test_a_part_is_not_in_memory_while_the_next_one_is_fetched(headers: dict[str, str]) -> None:
    steps = content_request(**headers).steps()
    next(steps)
    tracemalloc.start()
    step = steps.send(content_reply(b"x" * CONTENT_PART_BYTES))
    while not isinstance(step, PlatformRequest):
        step = steps.send(None)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < CONTENT_PART_BYTES / 10


def test_content_that_the_disk_has_no_space_for_is_a_507() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        content = responses.JsonContent("f", full)
        with pytest.raises(Refusal, match="No space left") as refusal:
            content.store(b"x")
    assert refusal.value.status == 507


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=0-1"}])
def test_a_missing_file_is_a_404(headers: dict[str, str]) -> None:
    assert run_exchange(content_request(**headers), NOT_FOUND).head.status == 404


def test_content_that_the_platform_did_not_store_is_an_error() -> None:
    found = run_exchange(content_request(), status_reply("COMPLETED"))
    assert (found.head.status, b"20 MB" in found.body) == (502, True)


def test_truncated_content_is_not_passed_on_as_complete() -> None:
    with pytest.raises(PlatformUnreachable):
        run_exchange(content_request(), content_reply(b"x" * CONTENT_PART_BYTES), NOT_FOUND)


@pytest.mark.parametrize(
    ("range_header", "begin", "size", "content_range"),
    [
        ("bytes=0-3", 0, 4, "bytes 0-3/30000000"),
        ("bytes=29999998-", 29_999_998, 2, "bytes 29999998-29999999/30000000"),
        ("bytes=-3", 29_999_997, 3, "bytes 29999997-29999999/30000000"),
        ("bytes=29999998-99999999", 29_999_998, 2, "bytes 29999998-29999999/30000000"),
        (f"bytes=29999998-{'9' * 5000}", 29_999_998, 2, "bytes 29999998-29999999/30000000"),
        (f"bytes={'0' * 5000}1-3", 1, 3, "bytes 1-3/30000000"),
    ],
    ids=range(6),
)
def test_a_range_of_content_is_a_206(
    range_header: str, begin: int, size: int, content_range: str
) -> None:
    file_object = status_reply("COMPLETED", output=[{"id": "f", "bytes": 30_000_000}])
    found = run_exchange(
        content_request(range=range_header), file_object, content_reply(b"x" * size)
    )
    assert (found.head.status, found.head.headers["content-range"]) == (206, content_range)
    assert found.body == b"x" * size
    routes = [found.request_body(n)["input"]["openai_route"] for n in (0, 1)]
    assert routes == ["/v1/files/f", f"/v1/files/f/content?offset={begin}&limit={size}"]


def test_a_large_range_is_read_in_parts() -> None:
    file_object = status_reply("COMPLETED", output=[{"bytes": 3 * CONTENT_PART_BYTES}])
    request = content_request(range=f"bytes=1-{CONTENT_PART_BYTES + 3}")
    found = run_exchange(
        request, file_object, content_reply(b"x" * CONTENT_PART_BYTES), content_reply(b"end")
    )
    assert found.body == b"x" * CONTENT_PART_BYTES + b"end"
    assert found.request_body(2)["input"]["openai_route"].endswith(
        f"?offset={CONTENT_PART_BYTES + 1}&limit=3"
    )


@pytest.mark.parametrize("first", ["10", "1" * 5000], ids=["10", "5,000 digits"])
def test_a_range_beyond_the_content_is_a_416(first: str) -> None:
    file_object = status_reply("COMPLETED", output=[{"bytes": 10}])
    found = run_exchange(content_request(range=f"bytes={first}-"), file_object)
    assert (found.head.status, b"the content has 10 bytes" in found.body) == (416, True)


@pytest.mark.parametrize("range_header", ["bytes=0-1,4-5", "lines=1-2", "bytes=-", "bytes=3-2"])
def test_an_invalid_range_or_several_ranges_return_all_content(range_header: str) -> None:
    file_object = status_reply("COMPLETED", output=[{"bytes": 3}])
    found = run_exchange(content_request(range=range_header), file_object, content_reply(b"all"))
    assert (found.head.status, found.body) == (200, b"all")


def test_a_range_of_a_file_without_a_size_is_an_error() -> None:
    found = run_exchange(
        content_request(range="bytes=0-1"), status_reply("COMPLETED", output=["text"])
    )
    assert (found.head.status, b"lacks the size of the file" in found.body) == (502, True)


# Long work:

RUN_WITH = {"input": {"batch": {"id": "b"}}}
CREATED = stream_reply({"id": "b", "run_with": RUN_WITH})


@pytest.mark.parametrize(
    ("reply", "created"),
    [
        (status_reply("IN_QUEUE"), {"id": "b"}),
        (PlatformReply(500, b""), {"id": "b", "run_with": RUN_WITH}),
    ],
    ids=["submitted", "not submitted: the creator gets the input"],
)
def test_the_job_that_runs_a_batch_is_submitted_for_its_creator(
    reply: PlatformReply, created: Any
) -> None:
    found = run_exchange(
        exchange("POST", "/v1/batches", {"input_file_id": "f"}), status_reply(), CREATED, reply
    )
    assert found.request_body(2)["input"] == RUN_WITH["input"]
    assert found.request_body(2)["policy"] == {"executionTimeout": 86_400_000, "ttl": 172_800_000}
    assert json.loads(found.body) == created


# The platform's own API:


def test_calls_of_the_platforms_own_api_pass_unchanged() -> None:
    answer = PlatformReply(400, b"no", {"content-type": "text/plain", "server": "x"})
    found = run_exchange(exchange("POST", "/v2/abc/run", {"input": 1}), answer)
    assert (found.paths, found.requests[0].content) == (["/run"], b'{"input": 1}')
    assert (found.head, found.body) == (ResponseHead(400, {"content-type": "text/plain"}), b"no")
    assert run_exchange(exchange("GET", "/v2/abc/status/a"), LOST).head.status == 502


@pytest.mark.parametrize("wait", ["", "?wait=300000"])
def test_a_synchronous_call_of_the_platforms_own_api_waits_by_polling(wait: str) -> None:
    queued, completed = status_reply("IN_QUEUE"), status_reply("COMPLETED", output=[1])
    job = exchange("POST", f"/v2/abc/runsync{wait}", {"input": 1})
    found = run_exchange(job, queued, status_reply(), completed)
    assert found.paths == ["/runsync?wait=1000", "/status/j", "/status/j"]
    assert (found.head.status, found.body) == (200, completed.content)
    # Only its caller may cancel the job.
    assert job.job.id is None
    found = run_exchange(exchange("GET", f"/v2/abc/status-sync/j{wait}"), completed)
    assert (found.paths, found.body) == (["/status-sync/j?wait=1000"], completed.content)


def test_a_synchronous_call_returns_the_jobs_state_after_its_wait(
    let_time_pass: Callable[[], None],
) -> None:
    queued = status_reply("IN_QUEUE")
    steps: Any = exchange("POST", "/v2/abc/runsync", {"input": 1}).steps()
    assert next(steps).path == "/runsync?wait=1000"
    assert isinstance(steps.send(queued), Pause)
    let_time_pass()
    assert steps.send(None).path == "/status/j"
    assert [steps.send(queued).status, next(steps)] == [200, queued.content]


def test_a_synchronous_call_whose_polls_fail_returns_the_id_of_its_job() -> None:
    queued, failed = status_reply("IN_QUEUE"), [PlatformReply(502, b"<html>")] * 6
    found = run_exchange(exchange("POST", "/v2/abc/runsync", {"input": 1}), queued, *failed)
    assert (found.head.status, found.body) == (200, queued.content)


def test_the_callers_timeout_ends_a_synchronous_call_without_a_cancel() -> None:
    call = exchange("POST", "/v2/abc/runsync", {"input": 1}, timeout_s=0)
    with pytest.raises(ReadTimedOut):
        run_exchange(call, status_reply("IN_QUEUE"))
    assert call.job.id is None
