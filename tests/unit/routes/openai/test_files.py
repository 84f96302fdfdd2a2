"""The routes of files, as jobs."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, failure, settings, yields_of

from worker.chunking import YIELD_LIMIT_BYTES
from worker.files import Files
from worker.job import Budget
from worker.routes.answer import json_size
from worker.routes.openai.files import LARGEST

FILES = "/v1/files"
LINES = '{"custom_id": "ä"}\r\n'


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


class Caller:
    """Sends jobs to a worker with a volume."""

    def __init__(self, engine: ScriptedEngine, root: Path) -> None:
        self.environ = {"FILES_PATH": str(root), "RUNPOD_VOLUME_ID": "bucket"}
        self.root = root
        self._engine = engine

    async def yields(self, method: str, route: str, body: Any = None) -> list[Any]:
        payload = {"route": route, "method": method, "body": body}
        return await yields_of(self._engine, payload, **self.environ)

    async def got(self, method: str, route: str, body: Any = None) -> Any:
        (answer,) = await self.yields(method, route, body)
        assert "error" not in answer, answer
        return answer

    async def refused(self, method: str, route: str, body: Any = None) -> dict[str, Any]:
        return failure(await self.yields(method, route, body))

    async def upload(self, **body: Any) -> Any:
        return await self.got("POST", FILES, {"content": LINES, **body})

    def stored(self, content: bytes) -> str:
        """Store a file that no job could carry; return its id."""
        files = Files.of(settings(**self.environ))
        return files.receive([content], filename="large").id


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    return Caller(engine, tmp_path / "volume")


async def test_a_file_is_uploaded_described_read_and_deleted(caller: Caller) -> None:
    file = await caller.upload(filename="a.jsonl", purpose="batch")
    assert (file["object"], file["bytes"], file["size"]) == ("file", 21, 21)
    assert (file["filename"], file["purpose"], file["status"]) == ("a.jsonl", "batch", "processed")
    path = f"{FILES}/{file['id']}"
    assert await caller.got("GET", path) == file
    assert await caller.got("GET", f"{path}/content") == LINES
    gone = {"id": file["id"], "object": "file", "deleted": True}
    assert await caller.got("DELETE", path) == gone
    assert (await caller.refused("GET", path))["code"] == 404


async def test_the_input_of_a_batch_that_has_not_ended_is_not_deleted(caller: Caller) -> None:
    file = await caller.upload(purpose="batch")
    batch = {
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch_id = (await caller.got("POST", "/v1/batches", batch))["id"]
    error = await caller.refused("DELETE", f"{FILES}/{file['id']}")
    assert (error["code"], error["type"]) == (409, "ConflictError")
    await caller.got("POST", f"/v1/batches/{batch_id}/cancel")
    assert (await caller.got("DELETE", f"{FILES}/{file['id']}"))["deleted"]


@pytest.mark.parametrize("method", ["POST", None])
async def test_a_file_is_deleted_by_a_post_where_other_verbs_are_lost(
    caller: Caller, engine: ScriptedEngine, method: str | None
) -> None:
    file = await caller.upload()
    payload = {"route": f"{FILES}/{file['id']}/delete", "method": method}
    (answer,) = await yields_of(engine, payload, **caller.environ)
    assert answer["deleted"]
    assert (await caller.refused("GET", f"{FILES}/{file['id']}"))["code"] == 404


async def test_the_same_job_again_finds_the_file_of_its_first_attempt(caller: Caller) -> None:
    first = await caller.upload(filename="a")
    assert await caller.upload(filename="a") == first
    assert (await caller.upload(filename="b"))["id"] != first["id"]


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({"content": "text"}, b"text"),
        ({"content": ""}, b""),
        ({"content_base64": base64.b64encode(b"\xff\0").decode()}, b"\xff\0"),
        ({"content": "text", "path": None, "content_base64": None, "purpose": None}, b"text"),
        ({"path": "inbox/a.jsonl"}, b"on the volume"),
        ({"path": "s3://bucket/inbox/a.jsonl"}, b"on the volume"),
    ],
)
async def test_a_content_comes_in_any_form(
    caller: Caller, body: dict[str, Any], content: bytes
) -> None:
    (caller.root / "inbox").mkdir(parents=True)
    (caller.root / "inbox" / "a.jsonl").write_bytes(b"on the volume")
    file = await caller.got("POST", FILES, body)
    assert (file["bytes"], file["purpose"]) == (len(content), "fine-tune")
    files = Files.of(settings(**caller.environ))
    assert files.content(files.get(file["id"])).read_bytes() == content


async def test_a_file_expires_when_its_caller_says(caller: Caller) -> None:
    file = await caller.upload(expires_after={"anchor": "created_at", "seconds": 3600})
    assert file["expires_at"] == file["created_at"] + 3600


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (None, "content", "exactly one"),
        ({}, "content", "exactly one"),
        ({"content": "a", "path": "b"}, "content", "exactly one"),
        ({"content": "a", "content_base64": "YQ=="}, "content", "exactly one"),
        ({"content": 5}, "content", "valid string"),
        ({"content": "a\ud83d"}, "content", "surrogate"),
        ({"content": "a", "filename": "\ud83d"}, "filename", "surrogate"),
        ({"path": "a\ud83d"}, "path", "surrogate"),
        ({"path": "a" * 5000}, "path", "leads to nothing"),
        ({"content_base64": "not base64!"}, "content_base64", "no base64"),
        ({"content_base64": "ä"}, "content_base64", "no base64"),
        ({"content": "a", "purpose": "batch_output"}, "purpose", "'assistants', 'batch'"),
        ({"content": "a", "purpose": 5}, "purpose", "'assistants', 'batch'"),
        ({"content": "a", "filename": ""}, "filename", "at least 1"),
        ({"content": "a", "filename": "a" * 256}, "filename", "at most 255"),
        ({"content": "a", "filname": "a"}, "filname", "did you mean 'filename'"),
        ({"content": "a", "expires_after": 3600}, "expires_after", "dictionary"),
        (
            {"content": "a", "expires_after": {"anchor": "created_at", "seconds": 3599}},
            "expires_after.seconds",
            "3600",
        ),
        (
            {"content": "a", "expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
            "expires_after.seconds",
            "2592000",
        ),
        (
            {"content": "a", "expires_after": {"anchor": "now", "seconds": 3600}},
            "expires_after.anchor",
            "'created_at'",
        ),
        ({"path": "../out"}, "path", "leads out"),
        ({"path": "worker/files"}, "path", "callers' paths are below"),
        ({"path": "inbox/missing"}, "path", "no such file"),
        ({"path": ""}, "path", "names a file"),
    ],
)
async def test_a_wrong_upload_is_refused_by_name_and_leaves_nothing(
    caller: Caller, body: Any, param: str | None, says: str
) -> None:
    error = await caller.refused("POST", FILES, body)
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert not caller.root.exists()


async def test_a_file_above_the_limit_is_refused(caller: Caller) -> None:
    caller.environ["FILES_MAX_MB"] = "1"
    error = await caller.refused("POST", FILES, {"content": "a" * 1_000_001})
    assert (error["code"], error["param"]) == (413, "file")
    assert "FILES_MAX_MB" in error["message"]


async def test_without_a_volume_the_caller_is_told(engine: ScriptedEngine, tmp_path: Path) -> None:
    payload = {"route": FILES, "body": {"content": "a"}, "method": "POST"}
    error = failure(await yields_of(engine, payload, BASE_PATH=str(tmp_path / "no")))
    assert (error["code"], error["retryable"]) == (507, False)
    assert "network volume" in error["message"]


# Lists:


async def test_files_are_listed_for_both_apis(caller: Caller) -> None:
    file = await caller.upload(filename="a")
    listed = await caller.got("GET", FILES)
    assert listed == {
        "object": "list",
        "data": [file],
        "first_id": file["id"],
        "last_id": file["id"],
        "has_more": False,
        "files": [{"id": file["id"], "filename": "a", "size": 21}],
    }


async def test_a_list_has_pages_an_order_and_a_purpose(caller: Caller) -> None:
    for name in "abc":
        await caller.upload(filename=name, purpose="batch")
    await caller.upload(filename="d", purpose="evals")
    query = "purpose=batch&limit=2&order=asc"
    first = await caller.got("GET", f"{FILES}?{query}")
    assert (len(first["data"]), first["has_more"]) == (2, True)
    second = await caller.got("GET", f"{FILES}?{query}&after={first['last_id']}")
    assert (len(second["data"]), second["has_more"]) == (1, False)
    found = [*first["data"], *second["data"]]
    assert sorted(file["filename"] for file in found) == ["a", "b", "c"]
    newest_first = await caller.got("GET", f"{FILES}?purpose=batch")
    assert newest_first["data"] == found[::-1]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", 400, "limit"),
        ("limit=10001", 400, "limit"),
        ("limit=ten", 400, "limit"),
        ("order=up", 400, "order"),
        ("after=file-x", 404, "after"),
        ("limit=&order=&after=&purpose=", None, None),
        ("beta=true", None, None),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    caller: Caller, query: str, code: int | None, param: str | None
) -> None:
    if code is None:
        assert (await caller.got("GET", f"{FILES}?{query}"))["data"] == []
        return
    error = await caller.refused("GET", f"{FILES}?{query}")
    assert (error["code"], error["param"]) == (code, param)


# Contents:


async def test_a_large_text_comes_in_parts_that_yields_hold(caller: Caller) -> None:
    # As JSON most of it takes six times its bytes.
    text = "ä€\U0001f600" * 100_000 + "\0" * 500_000 + '"' * 1_000_000
    id = caller.stored(text.encode())
    parts = await caller.yields("GET", f"{FILES}/{id}/content")
    assert "".join(parts) == text
    assert len(parts) > 3
    assert max(map(json_size, parts)) < YIELD_LIMIT_BYTES


async def test_bytes_that_are_no_text_come_as_base64(caller: Caller) -> None:
    content = b"\xff\0\xfe" * 500_000 + b"end"
    id = caller.stored(content)
    parts = await caller.yields("GET", f"{FILES}/{id}/content")
    assert all(part.keys() == {"content_base64"} for part in parts)
    assert len(parts) > 1
    assert base64.b64decode("".join(part["content_base64"] for part in parts)) == content
    assert max(map(json_size, parts)) < YIELD_LIMIT_BYTES


async def test_an_empty_file_is_an_empty_text(caller: Caller) -> None:
    assert await caller.got("GET", f"{FILES}/{caller.stored(b'')}/content") == ""


async def test_a_content_that_no_job_answers_is_refused_with_what_helps(caller: Caller) -> None:
    largest = caller.stored(b"a" * LARGEST)
    parts = await caller.yields("GET", f"{FILES}/{largest}/content")
    assert sum(map(len, parts)) == LARGEST
    larger = caller.stored(b"a" * (LARGEST + 1))
    error = await caller.refused("GET", f"{FILES}/{larger}/content")
    assert error["code"] == 413
    assert f"its key is worker/files/{larger}/content" in error["message"]
    assert str(caller.root) not in json.dumps(error)


async def test_llm_engines_form_has_the_id_and_the_text(caller: Caller) -> None:
    id = caller.stored(LINES.encode())
    route = f"{FILES}/{id}/content?format=llm_engine"
    assert await caller.got("GET", route) == {"id": id, "content": LINES}
    binary = caller.stored(b"\0\xff")
    route = f"{FILES}/{binary}/content?format=llm_engine"
    assert await caller.got("GET", route) == {"id": binary, "content": "AP8="}


@pytest.mark.parametrize("end", ["", "/content", "/delete"])
@pytest.mark.parametrize("id", ["file-x", "file-" + "a" * 24, "..", "%2e%2e", "a%00b"])
async def test_what_is_no_file_is_not_found(caller: Caller, id: str, end: str) -> None:
    method = "POST" if end == "/delete" else "GET"
    assert (await caller.refused(method, f"{FILES}/{id}{end}"))["code"] == 404


async def test_another_method_is_refused_with_those_that_are_taken(caller: Caller) -> None:
    error = await caller.refused("PUT", FILES)
    assert (error["code"], error["message"]) == (405, "/v1/files takes POST and GET.")


def test_the_largest_file_of_a_job_is_bounded_by_its_input() -> None:
    # Uploads in JSON are inputs like others.
    assert Budget().megabytes == 20
