"""Files over HTTP: uploads by forms, downloads of bytes, and LLM Engine's format."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine.scripted import ScriptedEngine
from support.serve_client import ServeClient, disconnect_after, error_of, post_streamed_body

from worker.serve import bodies

FILES = "/v1/files"
BOUNDARY = "----b"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
BINARY = b"\0\xff\r\n--" * 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "volume"


@pytest.fixture
def environ(root: Path) -> dict[str, str]:
    return {"FILES_PATH": str(root), "FILES_MAX_MB": "1"}


def files_in(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def form(*parts: tuple[str, bytes], end: bytes = b"--") -> bytes:
    """Return a body; each part has the parameters of its content disposition, and its content."""
    lines = [
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n"
        % (BOUNDARY.encode(), parameters.encode(), content)
        for parameters, content in parts
    ]
    return b"".join(lines) + b"--" + BOUNDARY.encode() + end


def form_with_field(parameters: str, content: bytes) -> bytes:
    return form(FILE, (parameters, content))


FILE = ('name="file"; filename="a.jsonl"', b"content")
# A form whose file continues.
FORM_BEGINNING = form(FILE).partition(b"content")[0]


async def upload(http: httpx.AsyncClient, content: bytes = b"text", **fields: str) -> Any:
    files = {"file": ("ä b.jsonl", content)}
    response = await http.post(FILES, data=fields, files=files)
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_uploaded_file_is_downloaded_as_bytes(http_client: ServeClient) -> None:
    expires = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = await upload(http_client, BINARY, purpose="batch", **expires)
    assert (file["filename"], file["purpose"]) == ("ä b.jsonl", "batch")
    assert (file["bytes"], file["expires_at"] - file["created_at"]) == (len(BINARY), 3600)
    response = await http_client.get(f"{FILES}/{file['id']}/content")
    assert response.content == BINARY
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-length"] == str(len(BINARY))
    assert "filename*=utf-8''%C3%A4%20b.jsonl" in response.headers["content-disposition"]
    assert response.headers["x-request-id"]


async def test_routes_work_without_v1_and_with_every_method(http_client: ServeClient) -> None:
    assert (await http_client.head("/v1/models")).status_code == 200
    uploaded = await http_client.post("/files", files={"file": ("a", b"text")})
    path = f"/files/{uploaded.json()['id']}"
    assert (await http_client.get(f"{path}/content")).content == b"text"
    head = await http_client.head(f"/v1{path}/content")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "4", b"")
    part = await http_client.get(f"/v1{path}/content", headers={"range": "bytes=2-3"})
    assert (part.status_code, part.content) == (206, b"xt")
    assert part.headers["content-range"] == "bytes 2-3/4"
    assert (await http_client.get(f"/v1{path}")).json() == uploaded.json()
    assert (await http_client.delete(f"/v1{path}")).json()["deleted"]
    assert (await http_client.get(f"/v1{path}/content")).status_code == 404


async def test_the_content_of_a_file_on_another_volume_can_be_requested_again(
    engine: ScriptedEngine, environ: dict[str, str]
) -> None:
    id = f"file-{'a' * 24}.vol-usvolume02"
    async with ServeClient(engine, **environ, RUNPOD_VOLUME_ID="euvolume01") as client:
        for path in (f"/v1/files/{id}/content", f"/v1/files/{id}"):
            response = await client.get(path)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert f"file {id} is on the network volume usvolume02" in error_of(response)["message"]


async def test_query_strings_reach_their_routes(http_client: ServeClient) -> None:
    # A JSON body is an upload, too.
    for purpose in ("batch", "evals", "evals"):
        await http_client.post(FILES, json={"content": "text", "purpose": purpose})
    page = (await http_client.get(FILES, params={"purpose": "evals", "limit": 1})).json()
    assert (len(page["data"]), page["has_more"]) == (1, True)
    wrong = await http_client.get(FILES, params={"order": "?&%"})
    assert error_of(wrong)["param"] == "order"


async def test_llm_engines_client_gets_json(http_client: ServeClient) -> None:
    id = (await upload(http_client, b"text"))["id"]
    for headers in ({"accept": "application/json, */*"}, {"authorization": "basic a2V5Og=="}):
        response = await http_client.get(f"{FILES}/{id}/content", headers=headers)
        assert response.json() == {"id": id, "content": "text"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        ('ä"\\\n\u2028\0' * 40_000).encode(),
        bytes(range(256)) * 1_000,
        # No text, which only the last byte shows.
        b"a" * 100_000 + b"\xc3",
    ],
)
async def test_a_file_of_any_content_is_valid_json(
    http_client: ServeClient, content: bytes
) -> None:
    id = (await upload(http_client, content))["id"]
    path = f"{FILES}/{id}/content"
    received = (await http_client.get(path, headers={"accept": "application/json"})).json()
    assert received["id"] == id
    try:
        assert received["content"] == content.decode()
    except UnicodeDecodeError:
        assert base64.b64decode(received["content"], validate=True) == content


# Refused forms:


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (form(FILE, end=b""), None, "breaks off"),
        (FORM_BEGINNING, None, "breaks off"),
        (form(), "file", "no file"),
        (form(('name="file"', b"a text")), "file", "no file"),
        (form(FILE, FILE), None, "Too many files"),
        (form(FILE, *[('name="purpose"', b"batch")] * 9), None, "Too many fields"),
        (form_with_field('name="purpose"', b"a" * 5000), None, "exceeded maximum size"),
        (form_with_field('name="purpose"', b"any"), "purpose", "'batch'"),
        (form_with_field('name="purpos"', b"batch"), "purpos", "did you mean 'purpose'"),
        (form_with_field('name="content"', b"a"), "content", "its content in file"),
        (
            form_with_field('name="expires_after[seconds]"', b"1e4"),
            "expires_after.anchor",
            ".seconds",
        ),
        (form((f'name="file"; filename="{"a" * 256}"', b"a")), "filename", "at most 255"),
        (form((f'name="file"; filename="a"\r\nX: {"a" * 5000}', b"a")), None, "refused"),
        (b"\0" * 100, None, "form is refused"),
    ],
    ids=lambda value: ascii(value)[-30:],
)
async def test_an_invalid_form_is_refused_and_stores_nothing(
    http_client: ServeClient, root: Path, body: bytes, param: str | None, says: str
) -> None:
    response = await http_client.post(FILES, content=body, headers=FORM)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert files_in(root) == []


async def test_a_too_large_file_or_a_form_without_a_boundary_stores_nothing(
    http_client: ServeClient, root: Path
) -> None:
    assert (await upload(http_client, bytes(1_000_000)))["bytes"] == 1_000_000
    before = files_in(root)
    response = await http_client.post(FILES, files={"file": ("a", bytes(1_000_001))})
    assert response.status_code == 413
    assert "FILES_MAX_MB" in error_of(response)["message"]
    headers = {"content-type": "multipart/form-data; boundary="}
    response = await http_client.post(FILES, content=form(FILE), headers=headers)
    assert response.status_code == 400
    assert files_in(root) == before


@pytest.mark.parametrize(
    ("headers", "max_reads"), [([], 4), ([("content-length", "9000000000")], 0)]
)
async def test_reading_stops_when_a_body_is_too_large(
    engine: ScriptedEngine, environ: dict[str, str], headers: list[tuple[str, str]], max_reads: int
) -> None:
    reads = 0

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        body = FORM_BEGINNING if reads == 1 else bytes(500_000)
        return {"type": "http.request", "body": body, "more_body": True}

    head, *_ = await post_streamed_body(engine, FILES, receive, *FORM.items(), *headers, **environ)
    assert (head["status"], reads) == (413, max_reads)


async def test_a_form_that_arrives_too_slowly_times_out(
    engine: ScriptedEngine, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MIN_RATE", 1_000_000_000)

    async def send_slowly() -> AsyncIterator[bytes]:
        yield form(FILE, end=b"")
        await asyncio.sleep(60)

    environ = {"FILES_PATH": str(root), "SERVE_TIMEOUT_S": "0.1"}
    async with ServeClient(engine, **environ) as http_client:
        response = await http_client.post(FILES, content=send_slowly(), headers=FORM)
    assert (error_of(response)["code"], files_in(root)) == (408, [])


@pytest.mark.parametrize("environ", [{"BASE_PATH": "/none"}])
async def test_without_a_volume_an_upload_is_refused(http_client: ServeClient) -> None:
    uploaded = await http_client.post(FILES, files={"file": ("a", b"a")})
    read = await http_client.get(f"{FILES}/file-{'a' * 24}/content")
    assert (error_of(uploaded)["code"], error_of(read)["code"]) == (507, 507)


async def test_a_client_that_disconnects_during_an_upload_stores_nothing(
    engine: ScriptedEngine, root: Path, environ: dict[str, str]
) -> None:
    receive = disconnect_after(form(FILE, end=b""))
    assert await post_streamed_body(engine, FILES, receive, *FORM.items(), **environ) == []
    assert files_in(root) == []


async def test_transfers_are_logged(
    http_client: ServeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "worker.record")
    id = (await upload(http_client, b"a canary"))["id"]
    for name in (id, "file-x"):
        await http_client.get(f"{FILES}/{name}/content")
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    content = "/v1/files/{id}/content"
    assert [(line["route"], line["status"]) for line in fields] == [
        ("/v1/files", 200),
        (content, 200),
        (content, 404),
    ]
    assert "canary" not in json.dumps(fields)
