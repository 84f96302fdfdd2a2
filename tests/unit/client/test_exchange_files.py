"""Requests step by step: contents of files, uploads, long work, the platform's own API."""

import base64
import json
import re
from typing import Any

import httpx2
import pytest
from support.exchanges import LOST, answered, exchange, failed, report, stream

from llm_worker_client.exchange import Exchange
from llm_worker_client.mapping import Request
from llm_worker_client.mapping.forms import LARGEST_FILE
from llm_worker_client.mapping.requests import CONTENT_PART
from llm_worker_client.steps import Head, NotStored, Reply, Unreachable

BASIC = {"authorization": "Basic cm9vdDo="}
NOT_THERE = report("FAILED", error=failed(404))


def yielded(*contents: bytes) -> Reply:
    encoded = [{"content_base64": base64.b64encode(one).decode()} for one in contents]
    return report("COMPLETED", output=encoded)


def content_of(**headers: str) -> Exchange:
    return exchange("GET", "/v1/files/f/content", headers=headers)


def test_a_content_is_read_in_parts_until_one_is_not_full() -> None:
    half = b"x" * (CONTENT_PART // 2)
    found = answered(content_of(), yielded(half, half), yielded(b"end"))
    assert found.body == b"x" * CONTENT_PART + b"end"
    assert [found.sent(n)["input"]["openai_route"].partition("?")[2] for n in (0, 1)] == [
        f"offset={offset}&limit={CONTENT_PART}" for offset in (0, CONTENT_PART)
    ]
    assert found.head.headers["content-type"] == "application/octet-stream"


def test_an_empty_content_is_a_response() -> None:
    found = answered(content_of(accept="application/binary"), yielded(b""))
    assert (found.head.status, found.body) == (200, b"")


@pytest.mark.parametrize("headers", [BASIC, {"accept": "application/json"}])
def test_a_content_for_llm_engine_has_its_id(headers: dict[str, str]) -> None:
    found = answered(content_of(**headers), yielded("ä".encode()[:1], "ä".encode()[1:]))
    assert json.loads(found.body) == {"id": "f", "content": "ä"}
    found = answered(content_of(**headers), yielded(b"\xff\0"))
    assert json.loads(found.body) == {"id": "f", "content": "/wA="}


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=0-1"}])
def test_a_file_that_is_not_there_is_a_404(headers: dict[str, str]) -> None:
    assert answered(content_of(**headers), NOT_THERE).head.status == 404


def test_a_content_that_the_platform_has_not_kept_is_an_error() -> None:
    found = answered(content_of(), report("COMPLETED"))
    assert (found.head.status, b"20 MB" in found.body) == (502, True)


def test_a_content_that_breaks_off_is_not_passed_on_as_whole() -> None:
    with pytest.raises(Unreachable):
        answered(content_of(), yielded(b"x" * CONTENT_PART), NOT_THERE)


@pytest.mark.parametrize(
    ("asked", "begin", "size", "content_range"),
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
def test_a_range_of_content_is_a_206(asked: str, begin: int, size: int, content_range: str) -> None:
    described = report("COMPLETED", output=[{"id": "f", "bytes": 30_000_000}])
    found = answered(content_of(range=asked), described, yielded(b"x" * size))
    assert (found.head.status, found.head.headers["content-range"]) == (206, content_range)
    assert found.body == b"x" * size
    routes = [found.sent(n)["input"]["openai_route"] for n in (0, 1)]
    assert routes == ["/v1/files/f", f"/v1/files/f/content?offset={begin}&limit={size}"]


def test_a_large_range_is_read_in_parts() -> None:
    described = report("COMPLETED", output=[{"bytes": 3 * CONTENT_PART}])
    asked = content_of(range=f"bytes=1-{CONTENT_PART + 3}")
    found = answered(asked, described, yielded(b"x" * CONTENT_PART), yielded(b"end"))
    assert found.body == b"x" * CONTENT_PART + b"end"
    assert found.sent(2)["input"]["openai_route"].endswith(f"?offset={CONTENT_PART + 1}&limit=3")


@pytest.mark.parametrize("first", ["10", "1" * 5000], ids=["10", "5,000 digits"])
def test_a_range_that_is_not_there_is_a_416(first: str) -> None:
    described = report("COMPLETED", output=[{"bytes": 10}])
    found = answered(content_of(range=f"bytes={first}-"), described)
    assert (found.head.status, b"the content has 10 bytes" in found.body) == (416, True)


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "lines=1-2", "bytes=-", "bytes=3-2"])
def test_ranges_that_are_none_or_several_are_all(asked: str) -> None:
    described = report("COMPLETED", output=[{"bytes": 3}])
    found = answered(content_of(range=asked), described, yielded(b"all"))
    assert (found.head.status, found.body) == (200, b"all")


def test_a_file_without_a_size_has_no_range() -> None:
    found = answered(content_of(range="bytes=0-1"), report("COMPLETED", output=["text"]))
    assert (found.head.status, b"no size of the file" in found.body) == (502, True)


# Uploads that no job holds:


def upload() -> Exchange:
    content = b"x" * (LARGEST_FILE + 1)
    made = httpx2.Request("POST", "http://form", files={"file": ("a.jsonl", content)})
    headers = {"content-type": made.headers["content-type"]}
    return Exchange(Request("POST", "/v1/files", headers, made.read()), "abc")


def test_a_large_upload_is_put_on_the_volume_and_made_a_file() -> None:
    found = answered(upload(), "uploads/1.jsonl", report(), stream({"id": "file-1"}))
    assert [step.name for step in found.stored] == ["a.jsonl"]
    body = {"filename": "a.jsonl", "path": "uploads/1.jsonl"}
    assert found.sent()["input"] == {"openai_route": "/v1/files", "openai_input": body}
    assert json.loads(found.body) == {"id": "file-1"}


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (NotStored("Set RUNPOD_VOLUME_ID.", 413), r"Set RUNPOD_VOLUME_ID\. Then .* post"),
        (NotStored("The volume is full.", 507), "The volume is full"),
    ],
)
def test_an_upload_that_cannot_be_stored_is_refused(failure: NotStored, says: str) -> None:
    found = answered(upload(), failure)
    assert (found.head.status, found.asked) == (failure.status, [])
    assert re.search(says, found.body.decode())


# Long work:

RUN_WITH = {"input": {"batch": {"id": "b"}}}
MADE = stream({"id": "b", "run_with": RUN_WITH})


@pytest.mark.parametrize(
    ("reply", "created"),
    [(report("IN_QUEUE"), {"id": "b"}), (Reply(500, b""), {"id": "b", "run_with": RUN_WITH})],
    ids=["handed in", "not taken: the creator learns how"],
)
def test_the_job_that_runs_a_batch_is_handed_in_for_its_creator(reply: Reply, created: Any) -> None:
    found = answered(exchange("POST", "/v1/batches", {"input_file_id": "f"}), report(), MADE, reply)
    assert found.sent(2)["input"] == RUN_WITH["input"]
    assert found.sent(2)["policy"] == {"executionTimeout": 86_400_000, "ttl": 172_800_000}
    assert json.loads(found.body) == created


# The platform's own API:


def test_the_platforms_own_api_is_passed_on_as_it_is() -> None:
    answer = Reply(400, b"no", {"content-type": "text/plain", "server": "x"})
    found = answered(exchange("POST", "/v2/abc/run", {"input": 1}), answer)
    assert (found.paths, found.asked[0].content) == (["/run"], b'{"input": 1}')
    assert (found.head, found.body) == (Head(400, {"content-type": "text/plain"}), b"no")
    assert answered(exchange("GET", "/v2/abc/status/a"), LOST).head.status == 502
