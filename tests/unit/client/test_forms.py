"""Forms, which become the JSON of an upload: read within bounds, and kept on the disk."""

import base64
import gc
import tempfile
from pathlib import Path

import pytest
from support.disks import mounted

from llm_worker_client.mapping import Refusal, Request, forms, read
from llm_worker_client.mapping.forms import LARGEST_FILE, Form
from llm_worker_client.mapping.requests import Call

FORM = "multipart/form-data; boundary=b"
ENCODED = b"Type: text/plain\r\nContent-Transfer-Encoding: base64"
FIELDS = [
    ("purpose", "batch"),
    ("expires_after[anchor]", "created_at"),
    ("expires_after[seconds]", "3600"),
]
BODY = {
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
    assert body == BODY


def test_an_upload_that_no_job_holds_is_put_on_the_volume_first() -> None:
    content = b"x" * (LARGEST_FILE + 1)
    call = uploading(form(content))
    assert call.large is not None
    path = call.large.path
    assert path.read_bytes() == content
    assert call.stored("uploads/x").input["openai_input"] == {**BODY, "path": "uploads/x"}
    call.large.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no form", "form"),
        (form(b"a")[:-9], "form"),
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
