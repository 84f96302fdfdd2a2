"""Requests as jobs, and what jobs yield as responses."""

import base64
import json
from typing import Any

import pytest

from llm_worker_client.mapping import (
    Dialect,
    Kind,
    PassedOn,
    Refusal,
    Request,
    dialect_of,
    read,
    refusal_of,
    responses,
)
from llm_worker_client.mapping.requests import Call

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
BASIC = "Basic " + base64.b64encode(b"root:").decode()
BATCH = "/v2/batch-completions"


def request(method: str, target: str, body: Any = None, **headers: str) -> Request:
    if isinstance(body, dict | list):
        headers = {"content_type": "application/json", **headers}
        body = json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, target, named, body or b"")


def called(method: str, target: str, body: Any = None, **headers: str) -> Call:
    call = read(request(method, target, body, **headers), "abc")
    assert isinstance(call, Call)
    return call


def openai(route: str, body: Any = None) -> dict[str, Any]:
    return {"openai_route": route, "openai_input": body}


def spelled(route: str, method: str, body: Any = None) -> dict[str, Any]:
    return {"route": route, "method": method, "body": body}


@pytest.mark.parametrize(
    ("method", "target", "body", "made"),
    [
        ("POST", "/v1/chat/completions", CHAT, openai("/v1/chat/completions", CHAT)),
        ("POST", "/chat/completions", CHAT, openai("/chat/completions", CHAT)),
        ("POST", "/v2/abc/openai/v1/embeddings", CHAT, openai("/v1/embeddings", CHAT)),
        ("POST", "/v2/abc/v1/messages", CHAT, openai("/v1/messages", CHAT)),
        ("GET", "/v1/models", None, openai("/v1/models")),
        ("HEAD", "/v1/models", None, openai("/v1/models")),
        ("GET", "/v1/models/org%2Fname", None, openai("/v1/models/org%2Fname")),
        ("GET", "/v1/files?limit=2&after=a", None, openai("/v1/files?limit=2&after=a")),
        ("GET", "/v2/abc/openai/health", None, openai("/health")),
        ("DELETE", "/v1/files/file-1", None, spelled("/v1/files/file-1", "DELETE")),
        ("PUT", "/v1/llm/fine-tunes/x/cancel", None, spelled("/v1/llm/fine-tunes/x/cancel", "PUT")),
        # Its method is said, because the body would not say it.
        ("POST", "/v1/batches/b/cancel", None, spelled("/v1/batches/b/cancel", "POST")),
        ("POST", "/v1/batches/b/cancel", {}, spelled("/v1/batches/b/cancel", "POST", {})),
        ("GET", BATCH, None, openai(BATCH)),
        ("POST", f"{BATCH}/b", {"priority": 1}, openai(f"{BATCH}/b", {"priority": 1})),
        ("GET", "/v2/other/status/x", None, openai("/v2/other/status/x")),
        # Nothing but an id is passed on to the platform.
        ("GET", "/v2/abc/status/..%2F..", None, openai("/status/..%2F..")),
    ],
)
def test_a_request_becomes_a_job_that_holds_all_of_it(
    method: str, target: str, body: Any, made: dict[str, Any]
) -> None:
    assert called(method, target, body).input == made


@pytest.mark.parametrize(
    "path",
    ["/run", "/runsync?wait=1000", "/status/a-e1", "/stream/a-e1", "/cancel/a-e1", "/health"],
)
def test_the_platforms_own_api_is_passed_on(path: str) -> None:
    assert read(request("POST", f"/v2/abc{path}", b"{"), "abc") == PassedOn(path)


@pytest.mark.parametrize(
    ("method", "target", "body", "kind"),
    [
        ("POST", "/v1/chat/completions", CHAT, Kind.WHOLE),
        ("POST", "/v1/chat/completions", {**CHAT, "stream": True}, Kind.EVENTS),
        ("POST", "/v1/chat/completions", {**CHAT, "stream": None}, Kind.WHOLE),
        ("POST", "/v1/llm/completions-stream?model_endpoint_name=m", {}, Kind.EVENTS),
        ("POST", "/v1/llm/completions-sync", {}, Kind.WHOLE),
        ("GET", "/v1/files/file-1/content", None, Kind.CONTENT),
        ("HEAD", "/files/file-1/content", None, Kind.CONTENT),
        ("GET", "/v1/v1/files/file-1/content", None, Kind.CONTENT),
        ("DELETE", "/v1/files/file-1/content", None, Kind.WHOLE),
    ],
)
def test_a_call_knows_what_its_job_yields(method: str, target: str, body: Any, kind: Kind) -> None:
    assert called(method, target, body).kind is kind


@pytest.mark.parametrize(("method", "reads"), [("GET", True), ("HEAD", True), ("DELETE", False)])
def test_only_what_changes_nothing_may_be_sent_again(method: str, reads: bool) -> None:
    assert called(method, "/v1/files/file-1").reads is reads


def test_a_part_of_a_content_is_asked_for_in_the_query() -> None:
    call = called("GET", "/v1/files/file-1/content").part(24)
    assert call.input["openai_route"] == "/v1/files/file-1/content?offset=24&limit=12000000"


@pytest.mark.parametrize(
    ("headers", "shown_as"),
    [
        ({"accept": "application/binary"}, None),
        ({"accept": "application/json"}, "file-1"),
        ({"authorization": BASIC}, "file-1"),
    ],
)
def test_llm_engines_client_gets_a_content_as_json(
    headers: dict[str, str], shown_as: str | None
) -> None:
    assert called("GET", "/v1/files/file-1/content", **headers).shown_as == shown_as


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
def test_what_no_job_can_hold_is_refused(
    body: bytes, content_type: str, status: int, says: str
) -> None:
    with pytest.raises(Refusal, match=says) as refused:
        called("POST", "/v1/files", body, content_type=content_type)
    assert refused.value.status == status


# Responses:


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
def test_errors_are_in_the_words_of_the_caller(
    target: str, authorization: str, dialect: Dialect
) -> None:
    asked = request("GET", target, authorization=authorization)
    assert dialect_of(asked, "abc") is dialect
    status, body = Refusal(409, "no").told(dialect)
    assert status == (400 if dialect is Dialect.LLM_ENGINE else 409)
    assert body["error"]["message"] == "no"
    assert body["error"]["type"] == "ConflictError"
    assert (body.get("type") == "error") == (dialect is Dialect.ANTHROPIC)
    assert (body.get("detail") == "no") == (dialect is Dialect.LLM_ENGINE)


WORKERS = {"message": "full", "type": "ServiceUnavailableError", "code": 503, "retryable": True}


@pytest.mark.parametrize(
    ("report", "status", "message", "retry_after"),
    [
        ({"status": "FAILED", "error": json.dumps({"error": WORKERS})}, 503, "full", 1),
        (
            {"status": "FAILED", "error": {"error": {**WORKERS, "retry_after": 7}}},
            503,
            "full",
            7,
        ),
        ({"status": "FAILED", "error": json.dumps({"error": {"message": "x"}})}, 500, "x", None),
        ({"status": "FAILED", "error": "a traceback"}, 500, "a traceback", None),
        ({"status": "FAILED"}, 500, "without an error", None),
        ({"status": "CANCELLED"}, 499, "was cancelled", None),
        ({"status": "TIMED_OUT"}, 504, "for its time", None),
    ],
)
def test_a_failed_job_has_the_status_of_its_error(
    report: dict[str, Any], status: int, message: str, retry_after: float | None
) -> None:
    refusal = refusal_of({"id": "a", **report})
    assert (refusal.status, refusal.retry_after_s) == (status, retry_after)
    assert message in refusal.error["message"]
    head, _ = responses.refused(refusal, Dialect.OPENAI, "a")
    assert head.status == status
    assert head.headers.get("retry-after") == (None if retry_after is None else f"{retry_after}")


def test_a_yield_is_json_or_text() -> None:
    head, body = responses.whole({"ä": 1.5}, "a")
    assert (head.headers["content-type"], body) == ("application/json", '{"ä":1.5}'.encode())
    assert head.headers["x-request-id"] == "a"
    head, body = responses.whole("# HELP", "a")
    assert (head.headers["content-type"], body) == ("text/plain; charset=utf-8", b"# HELP")


def test_decoded_events_are_spelled_out() -> None:
    events = responses.events([{"a": 1}, {"type": "message_stop"}])
    assert events == b'data: {"a":1}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'


def test_half_a_surrogate_pair_does_not_break_an_answer() -> None:
    assert responses.whole({"a": "\ud83d"}, None)[1] == b'{"a":"?"}'
    assert responses.events("data: \ud83d\n\n") == b"data: ?\n\n"


def test_an_error_that_a_stream_has_told_is_seen() -> None:
    told = b'data: {"a": 1}\n\ndata: {"error": {"message": "x"}}\n\ndata: [DONE]\n\n'
    assert responses.has_error(told)
    assert not responses.has_error(b'data: {"a": 1}\n\n')
    assert not responses.has_error(b"")
