"""Files with the official client: over `--serve`, and as jobs of a queue endpoint."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from support.processes.background import HUNG_S, wait_until
from support.processes.http_worker import KEY, Served
from support.processes.local_endpoint import LocalEndpoint
from support.volumes import expired

LINES = "".join(json.dumps({"custom_id": f"ä{number}"}) + "\n" for number in range(50_000)).encode()
MEGABYTE = 1_000_000
LARGE = 200 * MEGABYTE
# Bytes that the server may grow by for a file of that size.
GROWTH = 60 * MEGABYTE


def test_a_file_of_50000_lines_is_created_retrieved_read_and_deleted(serve_client: OpenAI) -> None:
    file = serve_client.files.create(
        file=("ä.jsonl", LINES),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.object, file.status, file.purpose) == ("file", "processed", "batch")
    assert (file.filename, file.bytes) == ("ä.jsonl", len(LINES))
    assert file.expires_at == file.created_at + 3600
    assert serve_client.files.retrieve(file.id) == file
    assert serve_client.files.content(file.id).read() == LINES
    deleted = serve_client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    with pytest.raises(openai.NotFoundError):
        serve_client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        serve_client.files.content(file.id)


def test_what_has_expired_is_removed_when_a_worker_has_started(
    server: Served, make_endpoint: LocalEndpoint
) -> None:
    volumes = [running.log.parent / "volume" for running in (server, make_endpoint)]
    wait_until(lambda: not any(map(expired, volumes)))


async def test_the_async_client_pages_through_a_list(async_serve_client: AsyncOpenAI) -> None:
    files = async_serve_client.files
    made = [(await files.create(file=b"\0\xff", purpose="evals")).id for _ in range(5)]
    page = await files.list(purpose="evals", limit=2, order="asc")
    assert (len(page.data), page.has_more) == (2, True)
    found = [file.id async for file in page]
    assert sorted(found) == sorted(made)
    assert [file.id async for file in files.list(purpose="evals", limit=3)] == found[::-1]
    assert (await files.content(found[0])).read() == b"\0\xff"


def test_what_is_wrong_is_an_error_that_the_client_knows(serve_client: OpenAI) -> None:
    files, purpose = serve_client.files, "any"
    with pytest.raises(openai.BadRequestError, match="'batch'"):
        files.create(file=b"a", purpose=purpose)  # type: ignore[arg-type]  # a wrong one
    with pytest.raises(openai.BadRequestError, match="limit"):
        files.list(limit=0)
    with pytest.raises(openai.NotFoundError):
        files.delete("file-x")
    with pytest.raises(openai.AuthenticationError):
        serve_client.with_options(api_key="sk-other").files.create(file=b"a", purpose="batch")


# What it takes of memory depends on the machine's allocator.
@pytest.mark.slow
def test_a_large_file_passes_through_little_memory(
    serve_client: OpenAI, server: Served, tmp_path: Path
) -> None:
    # Zeros, which take no room.
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", LARGE)
    before = server.peak(begin=True)
    file = serve_client.files.create(file=tmp_path / "large", purpose="batch")
    assert file.bytes == LARGE
    with serve_client.files.with_streaming_response.content(file.id) as response:
        assert sum(map(len, response.iter_bytes())) == LARGE
    assert server.peak() - before < GROWTH
    serve_client.files.delete(file.id)


def test_llm_engines_client_gets_its_shapes(serve_client: OpenAI, server: Served) -> None:
    content = "prompt,response\n"
    id = serve_client.files.create(file=("a.csv", content.encode()), purpose="fine-tune").id
    url, key = f"{server.url}/v1/files", {"x-api-key": KEY}
    with httpx.Client(headers=key, auth=(KEY, ""), timeout=HUNG_S) as http_client:
        shown = {"id": id, "filename": "a.csv", "size": 16}
        assert shown in http_client.get(url).json()["files"]
        assert http_client.get(f"{url}/{id}").json().items() >= shown.items()
        answered = http_client.get(f"{url}/{id}/content").json()
        assert answered == {"id": id, "content": content}


def test_files_work_as_jobs_where_the_gateway_lists_them(
    make_endpoint: LocalEndpoint, openai_client: OpenAI
) -> None:
    def run(method: str, route: str, body: Any = None) -> list[Any]:
        return make_endpoint.run({"route": f"/v1/files{route}", "method": method, "body": body})

    body = {"purpose": "batch", "filename": "a.jsonl", "content": LINES.decode()}
    (file,) = run("POST", "", body)
    assert file["bytes"] == len(LINES)
    (page,) = run("GET", "?purpose=batch&limit=1")
    assert page["first_id"] == file["id"]
    assert file["id"] in [one.id for one in openai_client.files.list()]
    assert openai_client.files.retrieve(file["id"]).bytes == len(LINES)
    parts = run("GET", f"/{file['id']}/content")
    assert len(parts) > 1
    assert "".join(parts).encode() == LINES
    (gone,) = run("POST", f"/{file['id']}/delete")
    assert gone["deleted"]
