"""Requests as jobs."""

import base64
import json
from typing import Any

import pytest

from llm_worker_client.mapping import Dialect, Kind, PassedOn, Refusal, Request, dialect_of, read
from llm_worker_client.mapping.requests import Call

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
STREAMED = {**CHAT, "stream": True}
UNSET = {**CHAT, "stream": None}
CONTENT = "/v1/files/file-1/content"
BATCH = "/v2/batch-completions"
BASIC = "Basic " + base64.b64encode(b"root:").decode()


def request(method: str, target: str, body: Any = None, **headers: str) -> Request:
    if isinstance(body, dict | list):
        headers = {"content-type": "application/json", **headers}
        body = json.dumps(body).encode()
    return Request(method, target, headers, body or b"")


def openai(route: str, body: Any = None) -> dict[str, Any]:
    return {"openai_route": route, "openai_input": body}


def spelled(route: str, method: str, body: Any = None) -> dict[str, Any]:
    return {"route": route, "method": method, "body": body}


@pytest.mark.parametrize(
    ("method", "target", "body", "made", "kind"),
    [
        ("POST", "/v1/chat/completions", CHAT, openai("/v1/chat/completions", CHAT), Kind.WHOLE),
        ("POST", "/chat/completions", STREAMED, openai("/chat/completions", STREAMED), Kind.EVENTS),
        ("POST", "/v1/completions", UNSET, openai("/v1/completions", UNSET), Kind.WHOLE),
        ("POST", "/v2/abc/openai/v1/embeddings", CHAT, openai("/v1/embeddings", CHAT), Kind.WHOLE),
        ("POST", "/v2/abc/v1/messages", CHAT, openai("/v1/messages", CHAT), Kind.WHOLE),
        ("GET", "/v1/models", None, openai("/v1/models"), Kind.WHOLE),
        ("HEAD", "/v1/models", None, openai("/v1/models"), Kind.WHOLE),
        ("GET", "/v1/models/org%2Fname", None, openai("/v1/models/org%2Fname"), Kind.WHOLE),
        ("GET", "/v1/files?limit=2&after=a", None, openai("/v1/files?limit=2&after=a"), Kind.WHOLE),
        ("GET", "/v2/abc/openai/health", None, openai("/health"), Kind.WHOLE),
        ("DELETE", "/v1/files/f", None, spelled("/v1/files/f", "DELETE"), Kind.WHOLE),
        ("PUT", "/v1/llm/x/cancel", None, spelled("/v1/llm/x/cancel", "PUT"), Kind.WHOLE),
        # Its method is said, because the body would not say it.
        ("POST", "/v1/b/cancel", None, spelled("/v1/b/cancel", "POST"), Kind.WHOLE),
        ("POST", "/v1/b/cancel", {}, spelled("/v1/b/cancel", "POST", {}), Kind.WHOLE),
        ("GET", BATCH, None, openai(BATCH), Kind.WHOLE),
        ("POST", f"{BATCH}/b", {"a": 1}, openai(f"{BATCH}/b", {"a": 1}), Kind.WHOLE),
        ("GET", "/v2/other/status/x", None, openai("/v2/other/status/x"), Kind.WHOLE),
        # Nothing but an id is passed on to the platform.
        ("GET", "/v2/abc/status/..%2F..", None, openai("/status/..%2F.."), Kind.WHOLE),
        (
            "POST",
            "/v1/llm/completions-sync",
            CHAT,
            openai("/v1/llm/completions-sync", CHAT),
            Kind.WHOLE,
        ),
        (
            "POST",
            "/v1/llm/completions-stream?a=m",
            CHAT,
            openai("/v1/llm/completions-stream?a=m", CHAT),
            Kind.EVENTS,
        ),
        ("GET", CONTENT, None, openai(CONTENT), Kind.CONTENT),
        ("HEAD", "/files/f/content", None, openai("/files/f/content"), Kind.CONTENT),
        ("GET", f"/v1{CONTENT}", None, openai(f"/v1{CONTENT}"), Kind.CONTENT),
        ("DELETE", CONTENT, None, spelled(CONTENT, "DELETE"), Kind.WHOLE),
    ],
)
def test_a_request_becomes_a_job_that_holds_all_of_it(
    method: str, target: str, body: Any, made: dict[str, Any], kind: Kind
) -> None:
    call = read(request(method, target, body), "abc")
    assert isinstance(call, Call)
    assert (call.input, call.kind) == (made, kind)
    # Only what changes nothing may be sent again.
    assert call.reads is (method in {"GET", "HEAD"})


@pytest.mark.parametrize(
    "path",
    ["/run", "/runsync?wait=1000", "/status/a-e1", "/stream/a-e1", "/cancel/a-e1", "/health"],
)
def test_the_platforms_own_api_is_passed_on(path: str) -> None:
    assert read(request("POST", f"/v2/abc{path}", b"{"), "abc") == PassedOn(path)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "says"),
    [
        (b"{", "application/json", 400, "broken JSON"),
        (b"[" * 100_000, "application/json", 400, "broken JSON"),
        (b"[1]", "application/json", 400, "no"),
        (b"a,b", "text/csv", 415, "text/csv"),
    ],
    ids=range(4),
)
def test_other_bodies_are_refused(body: bytes, content_type: str, status: int, says: str) -> None:
    with pytest.raises(Refusal, match=says) as refused:
        read(request("POST", "/v1/files", body, **{"content-type": content_type}), "abc")
    assert refused.value.status == status


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
def test_a_route_or_key_tells_the_caller(target: str, authorization: str, dialect: Dialect) -> None:
    assert dialect_of(request("GET", target, authorization=authorization), "abc") is dialect
