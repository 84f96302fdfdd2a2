"""The routes of files, called by jobs."""

import base64
import json
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import CHAT

from worker.chunking import YIELD_LIMIT_BYTES
from worker.dialects.openai.files import MAX_CONTENT_BYTES
from worker.files import DAY_S, Files
from worker.routes.answer import json_size

FILES = "/v1/files"
LINES = '{"custom_id": "ä"}\r\n'


def store_file(caller: Caller, content: bytes) -> str:
    """Store a file that is too large for a job, and return the route of its content."""
    id = Files.from_settings(caller.settings).receive([content], filename="large").id
    return f"{FILES}/{id}/content"


async def get_parts(caller: Caller, route: str) -> list[Any]:
    """Return the yields of a job that reads a content; each is within the platform's limit."""
    parts = await caller.yields({"openai_route": route})
    assert max(map(json_size, parts)) < YIELD_LIMIT_BYTES
    return parts


def decode_parts(parts: list[Any]) -> bytes:
    assert all(part.keys() == {"content_base64"} for part in parts)
    return base64.b64decode("".join(part["content_base64"] for part in parts))


async def test_a_file_is_uploaded_described_read_and_deleted(caller: Caller) -> None:
    file = await caller.post(FILES, content=LINES, filename="a.jsonl", purpose="batch")
    # The response must not contain a path.
    assert file == {
        **{"id": file["id"], "object": "file", "bytes": 21, "size": 21, "status": "processed"},
        **{"created_at": file["created_at"], "expires_at": file["created_at"] + 30 * DAY_S},
        **{"filename": "a.jsonl", "purpose": "batch"},
    }
    path = f"{FILES}/{file['id']}"
    assert await caller.get(path) == file
    assert await caller.get(f"{path}/content") == LINES
    deletion = {"id": file["id"], "object": "file", "deleted": True}
    # The platform's gateway doesn't pass on the method.
    assert await caller.run_job(route=f"{path}/delete") == deletion
    assert (await caller.request_error("GET", path))["code"] == 404


async def test_the_input_of_an_unfinished_batch_cannot_be_deleted(caller: Caller) -> None:
    file = await caller.post(FILES, content=LINES, purpose="batch")
    batch = await caller.post("/v1/batches", input_file_id=file["id"], endpoint=CHAT)
    error = await caller.request_error("DELETE", f"{FILES}/{file['id']}")
    assert (error["code"], error["type"]) == (409, "ConflictError")
    await caller.post(f"/v1/batches/{batch['id']}/cancel")
    assert (await caller.run_job(route=f"{FILES}/{file['id']}", method="DELETE"))["deleted"]


async def test_a_repeated_job_returns_the_file_of_its_first_attempt(caller: Caller) -> None:
    async def upload(filename: str) -> Any:
        body = {"content": LINES, "filename": filename}
        return await caller.run_job("job-1", route=FILES, method="POST", body=body)

    first = await upload("a")
    assert await upload("a") == first
    assert (await upload("b"))["id"] != first["id"]


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({"content": ""}, b""),
        ({"content_base64": base64.b64encode(b"\xff\0").decode()}, b"\xff\0"),
        ({"content": "text", "path": None, "content_base64": None, "purpose": None}, b"text"),
        ({"path": "s3://bucket/inbox/a.jsonl"}, b"on the volume"),
    ],
)
async def test_an_upload_has_text_base64_or_a_path(
    caller: Caller, body: dict[str, Any], content: bytes
) -> None:
    (caller.root / "inbox").mkdir(parents=True)
    (caller.root / "inbox" / "a.jsonl").write_bytes(b"on the volume")
    file = await caller.post(FILES, **body)
    assert (file["bytes"], file["purpose"]) == (len(content), "fine-tune")
    files = Files.from_settings(caller.settings)
    assert files.content_path(files.get(file["id"])).read_bytes() == content


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "content", "exactly one"),
        ({"content": "a", "path": "b"}, "content", "exactly one"),
        ({"content": 5}, "content", "valid string"),
        ({"content": "a\ud83d"}, "content", "surrogate"),
        ({"path": "../out"}, "path", "leads out"),
        ({"path": "inbox/missing"}, "path", "no such file"),
        ({"content_base64": "not base64!"}, "content_base64", "not valid base64"),
        ({"content": "a", "purpose": "batch_output"}, "purpose", "'assistants', 'batch'"),
        ({"content": "a", "filename": "a" * 256}, "filename", "at most 255"),
        ({"content": "a", "filname": "a"}, "filname", "did you mean 'filename'"),
        ({"content": "a", "expires_after": 3600}, "expires_after", "dictionary"),
    ],
)
async def test_an_invalid_upload_is_refused_with_the_key_and_stores_nothing(
    caller: Caller, body: dict[str, Any], param: str, says: str
) -> None:
    error = await caller.request_error("POST", FILES, **body)
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert not caller.root.exists()


async def test_without_a_volume_an_error_names_the_setting_for_the_operator(caller: Caller) -> None:
    environ = {"FILES_PATH": "", "BASE_PATH": str(caller.root / "none")}
    caller_without_volume = Caller(caller.engine, caller.root, **environ)
    for method, route, body in (
        ("POST", FILES, {"content": "a"}),
        ("GET", "/v1/batches", {}),
        ("GET", f"/v1/batches/batch_{'a' * 24}", {}),
    ):
        error = await caller_without_volume.request_error(method, route, **body)
        assert (error["code"], error["retryable"]) == (507, False)
        assert "FILES_PATH" in error["message"]


# Lists:


async def test_a_list_has_pages_an_order_and_a_purpose_for_both_apis(caller: Caller) -> None:
    for name in "abc":
        await caller.post(FILES, content=LINES, filename=name, purpose="batch")
    await caller.post(FILES, content=LINES, purpose="evals")
    query = f"{FILES}?purpose=batch&limit=2&order=asc"
    # An empty value and an unknown parameter have no effect.
    first = await caller.get(f"{query}&after=&beta=true")
    second = await caller.get(f"{query}&after={first['last_id']}")
    assert (len(first["data"]), first["has_more"]) == (2, True)
    files = [*first["data"], *second["data"]]
    assert sorted(file["filename"] for file in files) == ["a", "b", "c"]
    assert (await caller.get(f"{FILES}?purpose=batch"))["data"] == files[::-1]
    last = files[-1]
    page = {"data": [last], "first_id": last["id"], "last_id": last["id"], "has_more": False}
    llm_engine_files = [{"id": last["id"], "filename": last["filename"], "size": 21}]
    assert second == {"object": "list", **page, "files": llm_engine_files}


# Contents:


async def test_a_large_text_is_split_into_several_yields(caller: Caller) -> None:
    # In JSON, a null character takes six bytes.
    text = "ä€\U0001f600" * 100_000 + "\0" * 500_000 + '"' * 1_000_000
    parts = await get_parts(caller, store_file(caller, text.encode()))
    assert "".join(parts) == text
    assert len(parts) > 3


async def test_binary_content_is_returned_as_base64_and_empty_content_as_text(
    caller: Caller,
) -> None:
    content = b"\xff\0\xfe" * 500_000 + b"end"
    parts = await get_parts(caller, store_file(caller, content))
    assert decode_parts(parts) == content
    assert len(parts) > 1
    assert await caller.get(store_file(caller, b"")) == ""


async def test_content_too_large_for_a_job_is_refused_with_its_key_on_the_volume(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.dialects.openai.files.MAX_CONTENT_BYTES", 2_000_000)
    parts = await get_parts(caller, store_file(caller, b"a" * 2_000_000))
    assert sum(map(len, parts)) == 2_000_000
    route = store_file(caller, b"a" * 2_000_001)
    error = await caller.request_error("GET", route)
    assert error["code"] == 413
    assert f"its key is {route.replace('/v1', 'worker')}" in error["message"]
    assert str(caller.root) not in json.dumps(error)


CONTENT = bytes(range(256)) * (MAX_CONTENT_BYTES // 256 + 1)  # more than a job returns


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("offset=3&limit=2000000", CONTENT[3:2_000_003]),
        (f"offset={len(CONTENT) - 3}", CONTENT[-3:]),
        ("limit=14000000", CONTENT[:14_000_000]),
        ("offset=99999999999", b""),
        *((query, None) for query in ("offset=-1", "limit=0", "limit=14000001", "offset=a")),
    ],
)
async def test_a_range_of_content_is_returned_as_base64_and_an_invalid_range_is_refused(
    caller: Caller, query: str, part: bytes | None
) -> None:
    route = f"{store_file(caller, CONTENT)}?{query}"
    if part is None:
        error = await caller.request_error("GET", route)
        assert (error["code"], error["param"]) == (400, query.partition("=")[0])
        return
    parts = await get_parts(caller, route)
    assert decode_parts(parts) == part
    assert sum(map(json_size, parts)) < MAX_CONTENT_BYTES
