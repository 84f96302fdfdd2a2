"""Uploads in forms: read within limits, and buffered on the disk."""

import base64
import gc
import tempfile
from pathlib import Path

import pytest
from support.volume import mount_disk

from llm_worker_client.mapping import forms
from llm_worker_client.mapping.forms import MAX_FILE_BYTES, Form
from llm_worker_client.mapping.requests import JobRequest, Request, convert_request
from llm_worker_client.mapping.responses import Refusal

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
    form = forms.parse_form(content_type, [body])
    headers = {"content-type": content_type}
    call = convert_request(Request("POST", "/v1/files", headers, form=form), "abc")
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


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no form", "form is broken"),
        (form(b"a")[:-9], "breaks off before its end"),
        (form(b"a", name="data"), "no file with this name"),
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
        with pytest.raises(Refusal, match="can't be stored on this machine: No space") as raised:
            forms.parse_form(FORM, [form(b"x" * (MAX_FILE_BYTES + 1))])
        assert raised.value.status == 507
        # The frames of the failure keep the file open until they are collected.
        del raised
        gc.collect()
