"""Requests step by step: file contents, uploads, long work, the platform's own API."""

import base64
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.exchanges import LOST, error_body, exchange, run_exchange, status_reply, stream_reply

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping import responses
from llm_worker_client.mapping.forms import MAX_FILE_BYTES, parse_form
from llm_worker_client.mapping.requests import CONTENT_PART_BYTES, Request
from llm_worker_client.mapping.responses import Refusal
from llm_worker_client.steps import (
    FileNotStored,
    Pause,
    PlatformReply,
    PlatformRequest,
    PlatformUnreachable,
    ReadTimedOut,
    ResponseHead,
)

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
    found = run_exchange(content_request(**headers), content_reply(b"\xff\0"))
    assert json.loads(found.body) == {"id": "f", "content": "/wA="}


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


# Uploads too large for a job:


def upload() -> Exchange:
    content = b"x" * (MAX_FILE_BYTES + 1)
    sent = httpx2.Request("POST", "http://form", files={"file": ("a.jsonl", content)})
    headers = {"content-type": sent.headers["content-type"]}
    form = parse_form(headers["content-type"], [sent.read()])
    return Exchange(Request("POST", "/v1/files", headers, form=form), "abc")


def test_a_large_upload_goes_to_the_volume_and_becomes_a_file() -> None:
    found = run_exchange(
        upload(), "uploads/1.jsonl", status_reply(), stream_reply({"id": "file-1"})
    )
    assert [step.name for step in found.stored_files] == ["a.jsonl"]
    body = {"filename": "a.jsonl", "path": "uploads/1.jsonl"}
    assert found.request_body()["input"] == {"openai_route": "/v1/files", "openai_input": body}
    assert json.loads(found.body) == {"id": "file-1"}


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (FileNotStored("Set RUNPOD_VOLUME_ID.", 413), r"Set RUNPOD_VOLUME_ID\. The client .* post"),
        (FileNotStored("The volume is full.", 507), "The volume is full"),
    ],
)
def test_an_upload_that_cannot_be_stored_is_refused(failure: FileNotStored, message: str) -> None:
    found = run_exchange(upload(), failure)
    assert (found.head.status, found.requests) == (failure.status, [])
    assert re.search(message, found.body.decode())


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
