"""Files over HTTP: forms in, bytes out, and what LLM Engine's client gets instead."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine.scripted import ScriptedEngine, settings
from support.served import client, error_of

from worker.serve import bodies
from worker.serve.service import Service

FILES = "/v1/files"
BOUNDARY = "----b"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
BINARY = b"\0\xff\r\n--" * 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "volume"


@pytest.fixture
async def http(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    with ScriptedEngine() as engine:
        async with client(engine, FILES_PATH=str(root), FILES_MAX_MB="1") as connected:
            yield connected


def kept(root: Path) -> list[Path]:
    return [place for place in root.rglob("*") if place.is_file()]


def form(*parts: tuple[str, bytes], end: bytes = b"--") -> bytes:
    """Return a body: of each part the parameters of its disposition, and its content."""
    lines = [
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n"
        % (BOUNDARY.encode(), said.encode(), content)
        for said, content in parts
    ]
    return b"".join(lines) + b"--" + BOUNDARY.encode() + end


FILE = ('name="file"; filename="a.jsonl"', b"content")

# A file that goes on.
BEGUN = form(FILE).partition(b"content")[0]


async def upload(http: httpx.AsyncClient, content: bytes = b"text", **fields: str) -> Any:
    files = {"file": ("ä b.jsonl", content)}
    response = await http.post(FILES, data=fields, files=files)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_form_is_kept_and_its_file_comes_back_as_bytes(http: httpx.AsyncClient) -> None:
    expires = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = await upload(http, BINARY, purpose="batch", **expires)
    assert (file["filename"], file["purpose"]) == ("ä b.jsonl", "batch")
    assert (file["bytes"], file["expires_at"] - file["created_at"]) == (len(BINARY), 3600)
    response = await http.get(f"{FILES}/{file['id']}/content")
    assert response.content == BINARY
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-length"] == str(len(BINARY))
    assert "filename*=utf-8''%C3%A4%20b.jsonl" in response.headers["content-disposition"]
    assert response.headers["x-request-id"]


async def test_the_routes_work_without_v1_and_with_every_verb(http: httpx.AsyncClient) -> None:
    files = {"file": ("a", b"text")}
    id = (await http.post("/files", files=files)).json()["id"]
    assert (await http.get(f"/files/{id}/content")).content == b"text"
    head = await http.head(f"{FILES}/{id}/content")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "4", b"")
    assert (await http.get(f"{FILES}/{id}")).json()["id"] == id
    assert (await http.delete(f"{FILES}/{id}")).json()["deleted"]
    response = await http.get(f"{FILES}/{id}/content")
    assert (response.status_code, error_of(response)["type"]) == (404, "NotFoundError")


async def test_a_part_of_a_content_can_be_asked_for(http: httpx.AsyncClient) -> None:
    id = (await upload(http, b"0123456789"))["id"]
    response = await http.get(f"{FILES}/{id}/content", headers={"range": "bytes=2-4"})
    assert (response.status_code, response.content) == (206, b"234")
    assert response.headers["content-range"] == "bytes 2-4/10"


async def test_query_strings_reach_their_routes(http: httpx.AsyncClient) -> None:
    for purpose in ("batch", "evals", "evals"):
        await upload(http, purpose=purpose)
    page = (await http.get(FILES, params={"purpose": "evals", "limit": 1})).json()
    assert (len(page["data"]), page["has_more"]) == (1, True)
    more = await http.get(FILES, params={"purpose": "evals", "after": page["last_id"]})
    assert len(more.json()["data"]) == 1
    assert error_of(await http.get(FILES, params={"order": "?&%"}))["param"] == "order"


async def test_a_question_mark_in_a_path_begins_no_query(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/models/a%3Flimit=1%2541")
    assert "There is no model 'a?limit=1%41'" in error_of(response)["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"accept": "application/json"},
        {"authorization": "Basic a2V5Og=="},
        {"accept": "application/json, */*", "authorization": "basic a2V5Og=="},
    ],
)
async def test_llm_engines_client_gets_the_content_in_json(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    id = (await upload(http, b"text"))["id"]
    response = await http.get(f"{FILES}/{id}/content", headers=headers)
    assert response.json() == {"id": id, "content": "text"}


async def test_a_json_body_is_an_upload_too(http: httpx.AsyncClient) -> None:
    response = await http.post(FILES, json={"content": "text", "purpose": "batch"})
    assert response.json()["bytes"] == 4


# Forms that are refused:


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "breaks off"),
        (form(), "file", "no file"),
        (form(('name="file"', b"a text")), "file", "no file"),
        (form(('name="other"; filename="a"', b"a")), "file", "no file"),
        (form(FILE, FILE), None, "Too many files"),
        (form(FILE, *[('name="purpose"', b"batch")] * 9), None, "Too many fields"),
        (form(FILE, ('name="purpose"', b"a" * 5000)), None, "exceeded maximum size"),
        (form(FILE, ('name="purpose"', b"any")), "purpose", "'batch'"),
        (form(FILE, ('name="purpos"', b"batch")), "purpos", "did you mean 'purpose'"),
        (form(FILE, ('name="path"', b"a")), "path", "its content in file"),
        (form(FILE, ('name="content"', b"a")), "content", "its content in file"),
        (form(FILE, ('name="purpose"; filename="a"', b"a")), None, "Too many files"),
        (
            form(FILE, ('name="expires_after[seconds]"', b"1e4")),
            "expires_after.anchor",
            "expires_after.seconds",
        ),
        (
            form(('name="file"; filename="%s"' % ("a" * 256), b"a")),
            "filename",
            "at most 255",
        ),
        (form(FILE, end=b""), None, "breaks off"),
        (BEGUN, None, "breaks off"),
        (b"--wrong\r\n\r\n", None, "form is refused"),
        (b"\0" * 100, None, "form is refused"),
        (form(('name="file"; filename="a"\r\nX-Long: ' + "a" * 5000, b"a")), None, "refused"),
    ],
)
async def test_a_wrong_form_is_refused_and_leaves_nothing(
    http: httpx.AsyncClient, root: Path, body: bytes, param: str | None, says: str
) -> None:
    response = await http.post(FILES, content=body, headers=FORM)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert kept(root) == []


@pytest.mark.parametrize("media_type", ["multipart/form-data", "multipart/form-data; boundary="])
async def test_a_form_without_a_boundary_is_refused(
    http: httpx.AsyncClient, media_type: str
) -> None:
    headers = {"content-type": media_type}
    response = await http.post(FILES, content=form(FILE), headers=headers)
    assert error_of(response)["code"] == 400


async def test_only_files_come_in_forms(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", content=form(FILE), headers=FORM)
    assert error_of(response)["code"] == 415


async def test_the_largest_file_is_kept_and_a_larger_one_leaves_nothing(
    http: httpx.AsyncClient, root: Path
) -> None:
    assert (await upload(http, bytes(1_000_000)))["bytes"] == 1_000_000
    before = kept(root)
    response = await http.post(FILES, files={"file": ("a", bytes(1_000_001))})
    assert response.status_code == 413
    assert "FILES_MAX_MB" in error_of(response)["message"]
    assert kept(root) == before


async def test_of_a_body_that_is_too_large_no_more_is_read(root: Path) -> None:
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1
        body = BEGUN if read == 1 else bytes(500_000)
        return {"type": "http.request", "body": body, "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    content_type = FORM["content-type"].encode()
    declared = (b"content-length", b"9000000000")
    for more, most in (((), 4), ((declared,), 0)):
        read = 0
        headers = [(b"content-type", content_type), *more]
        scope = {"type": "http", "method": "POST", "path": FILES, "headers": headers}
        with ScriptedEngine() as engine:
            service = Service(engine.engines, settings(FILES_PATH=str(root), FILES_MAX_MB="1"))
            await service(scope, receive, send)
        assert (sent[0]["status"], read) == (413, most)
        sent.clear()


async def test_a_form_that_comes_too_slowly_is_given_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SLOWEST", 1_000_000_000)

    async def slow() -> AsyncIterator[bytes]:
        yield form(FILE, end=b"")
        await asyncio.sleep(60)

    environ = {"FILES_PATH": str(root), "SERVE_TIMEOUT_S": "0.1"}
    with ScriptedEngine() as engine:
        async with client(engine, **environ) as http:
            response = await http.post(FILES, content=slow(), headers=FORM)
    assert (response.status_code, error_of(response)["code"]) == (408, 408)
    assert kept(root) == []


async def test_without_a_volume_an_upload_is_refused(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        async with client(engine, BASE_PATH=str(tmp_path / "no")) as http:
            response = await http.post(FILES, files={"file": ("a", b"a")})
            assert error_of(response)["code"] == 507
            response = await http.get(f"{FILES}/file-{'a' * 24}/content")
            assert error_of(response)["code"] == 507


async def test_a_client_that_leaves_during_an_upload_leaves_nothing(root: Path) -> None:
    parts: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": form(FILE, end=b""), "more_body": True}]
    )

    async def receive() -> dict[str, Any]:
        return next(parts, {"type": "http.disconnect"})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", FORM["content-type"].encode())]
    scope = {"type": "http", "method": "POST", "path": FILES, "headers": headers}
    with ScriptedEngine() as engine:
        await Service(engine.engines, settings(FILES_PATH=str(root)))(scope, receive, send)
    assert (sent, kept(root)) == ([], [])


async def test_transfers_have_their_line_in_the_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "worker.record")
    id = (await upload(http, b"a canary"))["id"]
    await http.get(f"{FILES}/{id}/content")
    await http.get(f"{FILES}/file-x/content")
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    assert [(line["route"], line["status"]) for line in fields] == [
        ("/v1/files", 200),
        ("/v1/files/{id}/content", 200),
        ("/v1/files/{id}/content", 404),
    ]
    assert "canary" not in json.dumps(fields)


async def test_with_a_key_set_nobody_else_reads_or_writes(root: Path) -> None:
    environ = {"FILES_PATH": str(root), "SERVE_API_KEY": "sk-right"}
    with ScriptedEngine() as engine:
        async with client(engine, **environ) as http:
            response = await http.post(FILES, files={"file": ("a", b"a")})
            assert response.status_code == 401
            assert kept(root) == []
            allowed = httpx.BasicAuth("sk-right", "")
            response = await http.post(FILES, files={"file": ("a", b"a")}, auth=allowed)
            id = response.json()["id"]
            assert (await http.get(f"{FILES}/{id}/content")).status_code == 401
            response = await http.get(f"{FILES}/{id}/content", auth=allowed)
            assert response.json() == {"id": id, "content": "a"}
