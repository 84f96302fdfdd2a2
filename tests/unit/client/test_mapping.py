"""Requests as jobs; forms, which become the JSON of an upload."""

import base64
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.volume.disks import mounted

from llm_worker_client.mapping import (
    Dialect,
    Kind,
    PassedOn,
    Refusal,
    Request,
    dialect_of,
    forms,
    read,
)
from llm_worker_client.mapping.forms import LARGEST_FILE, Form
from llm_worker_client.mapping.requests import Call

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
        ("POST", f"{LLM}-sync", CHAT, openai(f"{LLM}-sync", CHAT), Kind.WHOLE),
        ("POST", f"{LLM}-stream?a=m", CHAT, openai(f"{LLM}-stream?a=m", CHAT), Kind.EVENTS),
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
        (b"[1]", "application/json", 400, "not a JSON object"),
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


# Forms are read within bounds, and kept on the disk:

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


def uploading(body: bytes, content_type: str = FORM) -> Call:
    call = read(Request("POST", "/v1/files", {"content-type": content_type}, body), "abc")
    assert isinstance(call, Call)
    return call


def form(content: bytes, *fields: tuple[str, str], name: str = "file") -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="'
    texts = [f'{head}{field}"\r\n\r\n{value}\r\n' for field, value in [*FIELDS, *fields]]
    file = f'{head}{name}"; filename="ä.bin"\r\nContent-Type: text/plain\r\n\r\n'
    return ("".join(texts) + file).encode() + content + b"\r\n--b--\r\n"


@pytest.mark.parametrize("content", [b"\0\xff\r\n--", b"", b"x" * 1_500_000])
def test_an_upload_in_a_form_becomes_json(content: bytes) -> None:
    body = uploading(form(content)).input["openai_input"]
    assert base64.b64decode(body.pop("content_base64")) == content
    assert body == UPLOAD


def test_an_upload_that_no_job_holds_is_put_on_the_volume_first() -> None:
    content = b"x" * (LARGEST_FILE + 1)
    call = uploading(form(content))
    assert call.large is not None
    path = call.large.path
    assert path.read_bytes() == content
    assert call.stored("uploads/x").input["openai_input"] == {**UPLOAD, "path": "uploads/x"}
    call.large.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "says"),
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
def test_a_form_that_no_job_can_hold_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(Refusal, match=says) as refused:
        uploading(body)
    assert refused.value.status == 400


@pytest.mark.parametrize("content_type", ["multipart/form-data", f"{FORM}{'b' * 300}"])
def test_a_form_without_a_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(Refusal, match="form is broken") as refused:
        uploading(form(b"a"), content_type)
    assert refused.value.status == 400


def test_a_field_without_an_end_is_refused_at_its_beginning() -> None:
    begin = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    parts = iter([begin, *[b"x" * 1_000_000] * 100])
    with pytest.raises(Refusal, match="more than 4,096 bytes"):
        forms.read(FORM, parts)
    assert len(list(parts)) == 99


def test_a_broken_off_form_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reading = Form(FORM)
    reading.write(form(b"x" * (LARGEST_FILE + 1000))[:-20])
    assert len(list(tmp_path.iterdir())) == 1
    reading.close()
    assert list(tmp_path.iterdir()) == []
    Form(FORM).close()


# What the parser holds of the file, nobody else can close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_is_full_is_a_507(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(tmp_path / "disk", 2**20) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(Refusal, match="can't be kept on this machine: No space") as refused:
            forms.read(FORM, [form(b"x" * (LARGEST_FILE + 1))])
        assert refused.value.status == 507
        # With the failure goes what its frames hold.
        del refused
        gc.collect()
