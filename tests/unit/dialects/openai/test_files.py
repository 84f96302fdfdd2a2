"""The routes of files, as jobs."""

import base64
import json
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import CHAT

from worker.chunking import YIELD_LIMIT_BYTES
from worker.dialects.openai.files import LARGEST
from worker.files import DAY_S, Files
from worker.routes.answer import json_size

FILES = "/v1/files"
LINES = '{"custom_id": "ä"}\r\n'


def stored(caller: Caller, content: bytes) -> str:
    """Store a file that no job could carry; return the route of its content."""
    id = Files.of(caller.settings).receive([content], filename="large").id
    return f"{FILES}/{id}/content"


async def parts_of(caller: Caller, route: str) -> list[Any]:
    """Return the yields of a job for a content: each is one that the platform takes."""
    parts = await caller.yields({"openai_route": route})
    assert max(map(json_size, parts)) < YIELD_LIMIT_BYTES
    return parts


def joined(parts: list[Any]) -> bytes:
    assert all(part.keys() == {"content_base64"} for part in parts)
    return base64.b64decode("".join(part["content_base64"] for part in parts))


async def test_a_file_is_uploaded_described_read_and_deleted(caller: Caller) -> None:
    file = await caller.post(FILES, content=LINES, filename="a.jsonl", purpose="batch")
    # Callers see no path.
    assert file == {
        **{"id": file["id"], "object": "file", "bytes": 21, "size": 21, "status": "processed"},
        **{"created_at": file["created_at"], "expires_at": file["created_at"] + 30 * DAY_S},
        **{"filename": "a.jsonl", "purpose": "batch"},
    }
    path = f"{FILES}/{file['id']}"
    assert await caller.get(path) == file
    assert await caller.get(f"{path}/content") == LINES
    gone = {"id": file["id"], "object": "file", "deleted": True}
    # The platform's gateway passes no method on.
    assert await caller.job(route=f"{path}/delete") == gone
    assert (await caller.refused("GET", path))["code"] == 404


async def test_the_input_of_a_batch_that_has_not_ended_is_not_deleted(caller: Caller) -> None:
    file = await caller.post(FILES, content=LINES, purpose="batch")
    batch = await caller.post("/v1/batches", input_file_id=file["id"], endpoint=CHAT)
    error = await caller.refused("DELETE", f"{FILES}/{file['id']}")
    assert (error["code"], error["type"]) == (409, "ConflictError")
    await caller.post(f"/v1/batches/{batch['id']}/cancel")
    assert (await caller.job(route=f"{FILES}/{file['id']}", method="DELETE"))["deleted"]


async def test_the_same_job_again_finds_the_file_of_its_first_attempt(caller: Caller) -> None:
    async def upload(filename: str) -> Any:
        body = {"content": LINES, "filename": filename}
        return await caller.job("job-1", route=FILES, method="POST", body=body)

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
async def test_contents_have_any_form(caller: Caller, body: dict[str, Any], content: bytes) -> None:
    (caller.root / "inbox").mkdir(parents=True)
    (caller.root / "inbox" / "a.jsonl").write_bytes(b"on the volume")
    file = await caller.post(FILES, **body)
    assert (file["bytes"], file["purpose"]) == (len(content), "fine-tune")
    files = Files.of(caller.settings)
    assert files.content(files.get(file["id"])).read_bytes() == content


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "content", "exactly one"),
        ({"content": "a", "path": "b"}, "content", "exactly one"),
        ({"content": 5}, "content", "valid string"),
        ({"content": "a\ud83d"}, "content", "surrogate"),
        ({"path": "../out"}, "path", "leads out"),
        ({"path": "inbox/missing"}, "path", "no such file"),
        ({"content_base64": "not base64!"}, "content_base64", "no base64"),
        ({"content": "a", "purpose": "batch_output"}, "purpose", "'assistants', 'batch'"),
        ({"content": "a", "filename": "a" * 256}, "filename", "at most 255"),
        ({"content": "a", "filname": "a"}, "filname", "did you mean 'filename'"),
        ({"content": "a", "expires_after": 3600}, "expires_after", "dictionary"),
    ],
)
async def test_a_wrong_upload_is_refused_by_name_and_leaves_nothing(
    caller: Caller, body: dict[str, Any], param: str, says: str
) -> None:
    error = await caller.refused("POST", FILES, **body)
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert not caller.root.exists()


async def test_a_file_above_the_limit_is_refused(caller: Caller) -> None:
    caller = Caller(caller.engine, caller.root, FILES_MAX_MB="1")
    error = await caller.refused("POST", FILES, content="a" * 1_000_001)
    assert (error["code"], error["param"]) == (413, "file")
    assert "FILES_MAX_MB" in error["message"]


async def test_without_a_volume_the_routes_say_what_the_operator_does(caller: Caller) -> None:
    none = {"FILES_PATH": "", "BASE_PATH": str(caller.root / "none")}
    without = Caller(caller.engine, caller.root, **none)
    for method, route, body in (
        ("POST", FILES, {"content": "a"}),
        ("GET", "/v1/batches", {}),
        ("GET", f"/v1/batches/batch_{'a' * 24}", {}),
    ):
        error = await without.refused(method, route, **body)
        assert (error["code"], error["retryable"]) == (507, False)
        assert "FILES_PATH" in error["message"]


# Lists:


async def test_a_list_has_pages_an_order_and_a_purpose_and_is_for_both_apis(
    caller: Caller,
) -> None:
    for name in "abc":
        await caller.post(FILES, content=LINES, filename=name, purpose="batch")
    await caller.post(FILES, content=LINES, purpose="evals")
    query = f"{FILES}?purpose=batch&limit=2&order=asc"
    # An empty value and an unknown name change nothing.
    first = await caller.get(f"{query}&after=&beta=true")
    second = await caller.get(f"{query}&after={first['last_id']}")
    assert (len(first["data"]), first["has_more"]) == (2, True)
    found = [*first["data"], *second["data"]]
    assert sorted(file["filename"] for file in found) == ["a", "b", "c"]
    assert (await caller.get(f"{FILES}?purpose=batch"))["data"] == found[::-1]
    last = found[-1]
    page = {"data": [last], "first_id": last["id"], "last_id": last["id"], "has_more": False}
    llm_engines = [{"id": last["id"], "filename": last["filename"], "size": 21}]
    assert second == {"object": "list", **page, "files": llm_engines}


# Contents:


async def test_a_large_text_comes_in_parts_that_yields_hold(caller: Caller) -> None:
    # As JSON most of it takes six times its bytes.
    text = "ä€\U0001f600" * 100_000 + "\0" * 500_000 + '"' * 1_000_000
    parts = await parts_of(caller, stored(caller, text.encode()))
    assert "".join(parts) == text
    assert len(parts) > 3


async def test_bytes_that_are_no_text_come_as_base64_and_nothing_as_a_text(caller: Caller) -> None:
    content = b"\xff\0\xfe" * 500_000 + b"end"
    parts = await parts_of(caller, stored(caller, content))
    assert joined(parts) == content
    assert len(parts) > 1
    assert await caller.get(stored(caller, b"")) == ""


async def test_a_content_that_no_job_answers_is_refused_with_what_helps(caller: Caller) -> None:
    parts = await parts_of(caller, stored(caller, b"a" * LARGEST))
    assert sum(map(len, parts)) == LARGEST
    larger = stored(caller, b"a" * (LARGEST + 1))
    error = await caller.refused("GET", larger)
    assert error["code"] == 413
    assert f"its key is {larger.replace('/v1', 'worker')}" in error["message"]
    assert str(caller.root) not in json.dumps(error)


@pytest.mark.parametrize(("content", "text"), [(LINES.encode(), LINES), (b"\0\xff", "AP8=")])
async def test_llm_engines_form_has_id_and_text(caller: Caller, content: bytes, text: str) -> None:
    route = stored(caller, content)
    answer = await caller.get(f"{route}?format=llm_engine")
    assert answer == {"id": route.split("/")[3], "content": text}


CONTENT = bytes(range(256)) * (LARGEST // 256 + 1)  # more than what a job answers at once


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
async def test_a_range_of_content_comes_as_base64_and_what_is_none_is_refused(
    caller: Caller, query: str, part: bytes | None
) -> None:
    route = f"{stored(caller, CONTENT)}?{query}"
    if part is None:
        error = await caller.refused("GET", route)
        assert (error["code"], error["param"]) == (400, query.partition("=")[0])
        return
    parts = await parts_of(caller, route)
    assert joined(parts) == part
    assert sum(map(json_size, parts)) < LARGEST
