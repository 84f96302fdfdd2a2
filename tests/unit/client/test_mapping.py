"""Requests become jobs; forms become the JSON of an upload."""

import base64
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.volume.disks import mount_disk

from llm_worker_client.mapping import (
    Dialect,
    ForwardedRequest,
    OutputKind,
    Refusal,
    Request,
    convert_request,
    find_dialect,
    forms,
)
from llm_worker_client.mapping.forms import MAX_FILE_BYTES, Form
from llm_worker_client.mapping.requests import JobRequest

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
STREAMED = {**CHAT, "stream": True}
UNSET = {**CHAT, "stream": None}
CONTENT = "/v1/files/file-1/content"
BATCH, LLM = "/v2/batch-completions", "/v1/llm/completions"
BASIC = "Basic " + base64.b64encode(b"root:").decode()


def request(method: str, target: str, body: Any = None, **headers: str) -> Request:
    if isinstance(body, dict | list):
        headers = {"content-type": "application/json", **headers}
        body = json.dumps(body).encode()
    return Request(method, target, headers, body or b"")


def openai_input(route: str, body: Any = None) -> dict[str, Any]:
    return {"openai_route": route, "openai_input": body}


def method_input(route: str, method: str, body: Any = None) -> dict[str, Any]:
    return {"route": route, "method": method, "body": body}


@pytest.mark.parametrize(
    ("method", "target", "body", "expected", "kind"),
    [
        (
            "POST",
            "/v1/chat/completions",
            CHAT,
            openai_input("/v1/chat/completions", CHAT),
            OutputKind.WHOLE,
        ),
        (
            "POST",
            "/chat/completions",
            STREAMED,
            openai_input("/chat/completions", STREAMED),
            OutputKind.EVENTS,
        ),
        (
            "POST",
            "/v1/completions",
            UNSET,
            openai_input("/v1/completions", UNSET),
            OutputKind.WHOLE,
        ),
        (
            "POST",
            "/v2/abc/openai/v1/embeddings",
            CHAT,
            openai_input("/v1/embeddings", CHAT),
            OutputKind.WHOLE,
        ),
        ("POST", "/v2/abc/v1/messages", CHAT, openai_input("/v1/messages", CHAT), OutputKind.WHOLE),
        ("GET", "/v1/models", None, openai_input("/v1/models"), OutputKind.WHOLE),
        ("HEAD", "/v1/models", None, openai_input("/v1/models"), OutputKind.WHOLE),
        (
            "GET",
            "/v1/models/org%2Fname",
            None,
            openai_input("/v1/models/org%2Fname"),
            OutputKind.WHOLE,
        ),
        (
            "GET",
            "/v1/files?limit=2&after=a",
            None,
            openai_input("/v1/files?limit=2&after=a"),
            OutputKind.WHOLE,
        ),
        ("GET", "/v2/abc/openai/health", None, openai_input("/health"), OutputKind.WHOLE),
        ("DELETE", "/v1/files/f", None, method_input("/v1/files/f", "DELETE"), OutputKind.WHOLE),
        (
            "PUT",
            "/v1/llm/x/cancel",
            None,
            method_input("/v1/llm/x/cancel", "PUT"),
            OutputKind.WHOLE,
        ),
        # The method is explicit because the body doesn't imply it.
        ("POST", "/v1/b/cancel", None, method_input("/v1/b/cancel", "POST"), OutputKind.WHOLE),
        ("POST", "/v1/b/cancel", {}, method_input("/v1/b/cancel", "POST", {}), OutputKind.WHOLE),
        ("GET", BATCH, None, openai_input(BATCH), OutputKind.WHOLE),
        ("POST", f"{BATCH}/b", {"a": 1}, openai_input(f"{BATCH}/b", {"a": 1}), OutputKind.WHOLE),
        ("GET", "/v2/other/status/x", None, openai_input("/v2/other/status/x"), OutputKind.WHOLE),
        # Only a plain job id is passed on to the platform.
        ("GET", "/v2/abc/status/..%2F..", None, openai_input("/status/..%2F.."), OutputKind.WHOLE),
        ("POST", f"{LLM}-sync", CHAT, openai_input(f"{LLM}-sync", CHAT), OutputKind.WHOLE),
        (
            "POST",
            f"{LLM}-stream?a=m",
            CHAT,
            openai_input(f"{LLM}-stream?a=m", CHAT),
            OutputKind.EVENTS,
        ),
        ("GET", CONTENT, None, openai_input(CONTENT), OutputKind.CONTENT),
        ("HEAD", "/files/f/content", None, openai_input("/files/f/content"), OutputKind.CONTENT),
        ("GET", f"/v1{CONTENT}", None, openai_input(f"/v1{CONTENT}"), OutputKind.CONTENT),
        ("DELETE", CONTENT, None, method_input(CONTENT, "DELETE"), OutputKind.WHOLE),
    ],
)
def test_a_request_becomes_the_complete_input_of_a_job(
    method: str, target: str, body: Any, expected: dict[str, Any], kind: OutputKind
) -> None:
    call = convert_request(request(method, target, body), "abc")
    assert isinstance(call, JobRequest)
    assert (call.input, call.kind) == (expected, kind)
    # Only read-only requests may be sent again.
    assert call.is_read_only is (method in {"GET", "HEAD"})


@pytest.mark.parametrize(("value", "expected"), [("1", {"receipt": True}), ("0", {})])
def test_the_header_for_a_receipt_becomes_a_key_of_the_job(
    value: str, expected: dict[str, Any]
) -> None:
    headers = {"x-receipt": value}
    call = convert_request(request("POST", "/v1/chat/completions", CHAT, **headers), "abc")
    assert isinstance(call, JobRequest)
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
            convert_request(request("POST", path, form(b"a"), **{"content-type": FORM}), "abc")
        assert raised.value.status == 415


def test_the_worker_refuses_the_routes_of_openai_that_take_other_forms() -> None:
    for path in ("/v1/audio/transcriptions", "/v1/images/edits", "/uploads/u/parts", "/v1/videos"):
        call = convert_request(request("POST", path, form(b"a"), **{"content-type": FORM}), "abc")
        assert isinstance(call, JobRequest)
        assert call.input == method_input(path, "POST")


# Forms are read within limits and buffered on disk:

FORM = "multipart/form-data; boundary=b"
ENCODED = b"Type: text/plain\r\nContent-Transfer-Encoding: base64"
FIELDS = [
    ("purpose", "batch"),
    ("expires_after[anchor]", "created_at"),
    ("expires_after[seconds]", "3600"),
]
UPLOAD = {
    "purpose": "batch",
    "expires_after": {"anchor": "created_at", "seconds": 3600},
    "filename": "ä.bin",
}


def read_upload(body: bytes, content_type: str = FORM) -> JobRequest:
    call = convert_request(
        Request("POST", "/v1/files", {"content-type": content_type}, body), "abc"
    )
    assert isinstance(call, JobRequest)
    return call


def form(content: bytes, *fields: tuple[str, str], name: str = "file") -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="'
    texts = [f'{head}{field}"\r\n\r\n{value}\r\n' for field, value in [*FIELDS, *fields]]
    file = f'{head}{name}"; filename="ä.bin"\r\nContent-Type: text/plain\r\n\r\n'
    return ("".join(texts) + file).encode() + content + b"\r\n--b--\r\n"


@pytest.mark.parametrize("content", [b"\0\xff\r\n--", b"", b"x" * 1_500_000])
def test_an_upload_in_a_form_becomes_json(content: bytes) -> None:
    body = read_upload(form(content)).input["openai_input"]
    assert base64.b64decode(body.pop("content_base64")) == content
    assert body == UPLOAD


def test_an_upload_too_large_for_a_job_goes_to_the_volume_first() -> None:
    content = b"x" * (MAX_FILE_BYTES + 1)
    call = read_upload(form(content))
    assert call.large_form is not None
    path = call.large_form.file_path
    assert path.read_bytes() == content
    assert call.with_stored_file("uploads/x").input["openai_input"] == {
        **UPLOAD,
        "path": "uploads/x",
    }
    call.large_form.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no form", "form is broken"),
        (form(b"a")[:-9], "breaks off before its end"),
        (form(b"a", name="data"), "no file of this name"),
        (form(b"a", ("a", "1"), ("a[b]", "2")), "a value and an object"),
        (form(b"a", ("a[b]", "2"), ("a", "1")), "a value and an object"),
        (form(b"a", ("a[b]", "1" * 4_097)), "more than 4,096 bytes"),
        (form(b"a", ("a" * 8_000, "1")), "form is broken"),
        (form(b"a", *[("a", "")] * 6), "more than 9 parts"),
        (form(b"a").replace(b"name=", b"nome="), "no name"),
        (form(b"YQ==").replace(b"Type: text/plain", ENCODED), "encoded as base64"),
    ],
    ids=range(10),
)
def test_an_invalid_form_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        read_upload(body)
    assert raised.value.status == 400


@pytest.mark.parametrize("content_type", ["multipart/form-data", f"{FORM}{'b' * 300}"])
def test_a_form_without_a_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(Refusal, match="form is broken") as raised:
        read_upload(form(b"a"), content_type)
    assert raised.value.status == 400


def test_an_endless_field_is_refused_early() -> None:
    begin = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    parts = iter([begin, *[b"x" * 1_000_000] * 100])
    with pytest.raises(Refusal, match="more than 4,096 bytes"):
        forms.parse_form(FORM, parts)
    assert len(list(parts)) == 99


def test_a_truncated_form_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reading = Form(FORM)
    reading.feed(form(b"x" * (MAX_FILE_BYTES + 1000))[:-20])
    assert len(list(tmp_path.iterdir())) == 1
    reading.close()
    assert list(tmp_path.iterdir()) == []
    Form(FORM).close()


# Only the parser can close its handle of the file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_a_507(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mount_disk(tmp_path / "disk", 2**20) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(Refusal, match="can't be kept on this machine: No space") as raised:
            forms.parse_form(FORM, [form(b"x" * (MAX_FILE_BYTES + 1))])
        assert raised.value.status == 507
        # The frames of the failure keep the file open until they are collected.
        del raised
        gc.collect()
