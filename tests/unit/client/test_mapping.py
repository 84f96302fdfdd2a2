"""Requests become jobs."""

import base64
import json
from typing import Any

import pytest

from llm_worker_client.mapping.requests import (
    ForwardedRequest,
    JobRequest,
    OutputKind,
    Request,
    convert_request,
    find_dialect,
)
from llm_worker_client.mapping.responses import Dialect, Refusal

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
STREAMED = {**CHAT, "stream": True}
UNSET = {**CHAT, "stream": None}
CONTENT = "/v1/files/file-1/content"
BATCH, LLM = "/v2/batch-completions", "/v1/llm/completions"
FORM = {"content-type": "multipart/form-data; boundary=b"}
WHOLE, EVENTS = OutputKind.WHOLE, OutputKind.EVENTS
BASIC = "Basic " + base64.b64encode(b"root:").decode()


def request(method: str, target: str, body: Any = None, **headers: str) -> Request:
    if isinstance(body, dict | list):
        headers = {"content-type": "application/json", **headers}
        body = json.dumps(body).encode()
    return Request(method, target, headers, body or b"")


def convert_to_job(call: Request) -> JobRequest:
    job_request = convert_request(call, "abc")
    assert isinstance(job_request, JobRequest)
    return job_request


def openai_input(route: str, body: Any = None) -> dict[str, Any]:
    return {"openai_route": route, "openai_input": body}


def method_input(route: str, method: str, body: Any = None) -> dict[str, Any]:
    return {"route": route, "method": method, "body": body}


@pytest.mark.parametrize(
    ("method", "target", "body", "kind", "route"),
    [
        ("POST", "/v1/chat/completions", CHAT, WHOLE, None),
        ("POST", "/chat/completions", STREAMED, EVENTS, None),
        ("POST", "/v1/completions", UNSET, WHOLE, None),
        ("POST", "/v2/abc/openai/v1/embeddings", CHAT, WHOLE, "/v1/embeddings"),
        ("POST", "/v2/abc/v1/messages", CHAT, WHOLE, "/v1/messages"),
        ("GET", "/v1/models", None, WHOLE, None),
        ("HEAD", "/v1/models", None, WHOLE, None),
        ("GET", "/v1/models/org%2Fname", None, WHOLE, None),
        ("GET", "/v1/files?limit=2&after=a", None, WHOLE, None),
        ("GET", "/v2/abc/openai/health", None, WHOLE, "/health"),
        ("GET", BATCH, None, WHOLE, None),
        ("POST", f"{BATCH}/b", {"a": 1}, WHOLE, None),
        ("GET", "/v2/other/status/x", None, WHOLE, None),
        # Only a plain job id is passed on to the platform.
        ("GET", "/v2/abc/status/..%2F..", None, WHOLE, "/status/..%2F.."),
        ("POST", f"{LLM}-sync", CHAT, WHOLE, None),
        ("POST", f"{LLM}-stream?a=m", CHAT, EVENTS, None),
        ("GET", CONTENT, None, OutputKind.CONTENT, None),
        ("HEAD", "/files/f/content", None, OutputKind.CONTENT, None),
        ("GET", f"/v1{CONTENT}", None, OutputKind.CONTENT, None),
    ],
)
def test_a_request_becomes_a_job_in_the_format_of_the_gateway(
    method: str, target: str, body: Any, kind: OutputKind, route: str | None
) -> None:
    call = convert_to_job(request(method, target, body))
    assert (call.input, call.kind) == (openai_input(route or target, body), kind)
    # Only read-only requests may be sent again.
    assert call.is_read_only is (method in {"GET", "HEAD"})


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("DELETE", "/v1/files/f", None),
        ("PUT", "/v1/llm/x/cancel", None),
        # The method is explicit because the body doesn't imply it.
        ("POST", "/v1/b/cancel", None),
        ("POST", "/v1/b/cancel", {}),
        ("DELETE", CONTENT, None),
    ],
)
def test_a_request_that_the_gateway_drops_becomes_a_job_with_its_method(
    method: str, target: str, body: Any
) -> None:
    call = convert_to_job(request(method, target, body))
    assert (call.input, call.kind) == (method_input(target, method, body), WHOLE)
    assert not call.is_read_only


@pytest.mark.parametrize(("value", "expected"), [("1", {"receipt": True}), ("0", {})])
def test_the_header_for_a_receipt_becomes_a_key_of_the_job(
    value: str, expected: dict[str, Any]
) -> None:
    headers = {"x-receipt": value}
    call = convert_to_job(request("POST", "/v1/chat/completions", CHAT, **headers))
    assert call.input == {**openai_input("/v1/chat/completions", CHAT), **expected}


@pytest.mark.parametrize(
    "path",
    ["/run", "/runsync?wait=1000", "/status/a-e1", "/stream/a-e1", "/cancel/a-e1", "/health"],
)
def test_calls_of_the_platforms_own_api_are_forwarded(path: str) -> None:
    assert convert_request(request("POST", f"/v2/abc{path}", b"{"), "abc") == ForwardedRequest(path)


@pytest.mark.parametrize("path", ["/runsync", "/status-sync/a-e1"])
@pytest.mark.parametrize(
    ("query", "forwarded", "wait_s"),
    [
        ("", "?wait=1000", 89.0),
        ("?ttl=9&wait=300000", "?ttl=9&wait=1000", 299.0),
        # The platform refuses these.
        ("?wait=300001", "?wait=300001", None),
        ("?wait=x", "?wait=x", None),
    ],
)
def test_a_synchronous_call_of_the_platforms_own_api_waits_for_the_minimum(
    path: str, query: str, forwarded: str, wait_s: float | None
) -> None:
    call = convert_request(request("POST", f"/v2/abc{path}{query}", b"{"), "abc")
    assert call == ForwardedRequest(f"{path}{forwarded}", wait_s)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "message"),
    [
        (b"{", "application/json", 400, "broken JSON"),
        (b"[" * 100_000, "application/json", 400, "broken JSON"),
        (b"[1]", "application/json", 400, "not a JSON object"),
        (b"a,b", "text/csv", 415, "application/json"),
    ],
    ids=range(4),
)
def test_a_body_that_is_not_a_json_object_is_refused(
    body: bytes, content_type: str, status: int, message: str
) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        convert_request(request("POST", "/v1/files", body, **{"content-type": content_type}), "abc")
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("target", "authorization", "dialect"),
    [
        ("/v1/chat/completions", "Bearer a", Dialect.OPENAI),
        ("/v1/messages", "", Dialect.ANTHROPIC),
        ("/v2/abc/openai/v1/messages/count_tokens?beta=true", "", Dialect.ANTHROPIC),
        ("/v1/llm/fine-tunes", "", Dialect.LLM_ENGINE),
        ("/v1/files", BASIC, Dialect.LLM_ENGINE),
    ],
)
def test_the_route_or_the_key_determines_the_dialect(
    target: str, authorization: str, dialect: Dialect
) -> None:
    assert find_dialect(request("GET", target, authorization=authorization), "abc") is dialect


def test_anthropics_files_are_refused_in_its_format() -> None:
    for target in ("/v1/files?beta=true", "/files/f", "/v2/abc/openai/v1/files"):
        call = request("GET", target, **{"anthropic-version": "2023-06-01"})
        assert find_dialect(call, "abc") is Dialect.ANTHROPIC
        with pytest.raises(Refusal, match="Anthropic's API for files is not served"):
            convert_request(call, "abc")


# Forms for other routes than /v1/files:


def test_only_uploads_may_be_forms() -> None:
    for path in ("/v1/chat/completions", "/v1/batches/b/cancel"):
        with pytest.raises(Refusal, match="Send the body as JSON") as raised:
            convert_request(request("POST", path, b"a", **FORM), "abc")
        assert raised.value.status == 415


def test_the_worker_refuses_the_routes_of_openai_that_take_other_forms() -> None:
    for path in ("/v1/audio/transcriptions", "/v1/images/edits", "/uploads/u/parts", "/v1/videos"):
        call = convert_to_job(request("POST", path, b"a", **FORM))
        assert call.input == method_input(path, "POST")
