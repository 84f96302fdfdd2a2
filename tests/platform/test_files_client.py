"""Files with the official client, unchanged, over `--serve`, and as jobs of an endpoint."""

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from support.processes.background import HUNG_S, wait_until
from support.processes.http_worker import KEY, HttpWorker
from support.processes.local_endpoint import LocalEndpoint
from support.volumes import expired

LINES = "".join(json.dumps({"custom_id": f"ä{number}"}) + "\n" for number in range(50_000)).encode()
MEGABYTE = 1_000_000
LARGE = 200 * MEGABYTE
# Bytes that the server may grow by for a file of that size.
GROWTH = 60 * MEGABYTE


def sparse(place: Path, size: int) -> Path:
    """Make a file of zeros, which takes no room."""
    with place.open("wb") as opened:
        opened.truncate(size)
    return place


def test_a_file_of_50000_lines_is_created_retrieved_read_and_deleted(served: OpenAI) -> None:
    file = served.files.create(
        file=("ä.jsonl", LINES),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.object, file.status, file.purpose) == ("file", "processed", "batch")
    assert (file.filename, file.bytes) == ("ä.jsonl", len(LINES))
    assert file.expires_at == file.created_at + 3600
    assert served.files.retrieve(file.id) == file
    assert served.files.content(file.id).read() == LINES
    deleted = served.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    with pytest.raises(openai.NotFoundError):
        served.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        served.files.content(file.id)


async def test_the_async_client_does_the_same(async_served: AsyncOpenAI) -> None:
    file = await async_served.files.create(file=b"\0\xff", purpose="user_data")
    assert await async_served.files.retrieve(file.id) == file
    content = await async_served.files.content(file.id)
    assert content.read() == b"\0\xff"
    assert file.id in [one.id async for one in async_served.files.list()]
    assert (await async_served.files.delete(file.id)).deleted


def test_what_has_expired_is_removed_when_a_worker_has_started(
    server: HttpWorker, make_endpoint: LocalEndpoint
) -> None:
    volumes = [running.log.parent / "volume" for running in (server, make_endpoint)]
    wait_until(lambda: not any(map(expired, volumes)))


def test_the_client_pages_through_a_list(served: OpenAI) -> None:
    made = [served.files.create(file=(str(n), b"a"), purpose="evals").id for n in range(5)]
    page = served.files.list(purpose="evals", limit=2, order="asc")
    assert (len(page.data), page.has_more) == (2, True)
    found = [file.id for file in page]
    assert sorted(found) == sorted(made)
    backwards = [file.id for file in served.files.list(purpose="evals", limit=3)]
    assert backwards == found[::-1]


def test_what_is_wrong_is_an_error_that_the_client_knows(served: OpenAI) -> None:
    purpose: Any = "any"
    with pytest.raises(openai.BadRequestError, match="'batch'"):
        served.files.create(file=b"a", purpose=purpose)
    with pytest.raises(openai.BadRequestError, match="limit"):
        served.files.list(limit=0)
    with pytest.raises(openai.NotFoundError):
        served.files.delete("file-x")
    with pytest.raises(openai.AuthenticationError):
        served.with_options(api_key="sk-other").files.create(file=b"a", purpose="batch")


def test_a_large_file_passes_through_little_memory(
    served: OpenAI, server: HttpWorker, tmp_path: Path
) -> None:
    before = server.peak(begin=True)
    file = served.files.create(file=sparse(tmp_path / "large", LARGE), purpose="batch")
    assert file.bytes == LARGE
    received = 0
    with served.files.with_streaming_response.content(file.id) as response:
        for part in response.iter_bytes():
            received += len(part)
    assert received == LARGE
    assert server.peak() - before < GROWTH
    served.files.delete(file.id)


def test_a_file_above_the_limit_is_refused_before_it_is_sent(
    served: OpenAI, tmp_path: Path
) -> None:
    with pytest.raises(openai.APIStatusError, match="FILES_MAX_MB") as refused:
        served.files.create(file=sparse(tmp_path / "large", 600 * MEGABYTE), purpose="batch")
    assert refused.value.status_code == 413


def test_llm_engines_client_gets_its_shapes(served: OpenAI, server: HttpWorker) -> None:
    file = served.files.create(file=("a.csv", b"prompt,response\n"), purpose="fine-tune")
    basic = base64.b64encode(f"{KEY}:".encode()).decode()

    def got(path: str) -> Any:
        headers = {"authorization": f"Basic {basic}", "x-api-key": KEY}
        request = urllib.request.Request(f"{server.url}/v1/{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
            return json.load(answer)

    shown = {"id": file.id, "filename": "a.csv", "size": 16}
    assert shown in got("files")["files"]
    assert got(f"files/{file.id}").items() >= shown.items()
    content = {"id": file.id, "content": "prompt,response\n"}
    assert got(f"files/{file.id}/content") == content


# As jobs, where there is no connection to the worker:


def run(endpoint: LocalEndpoint, method: str, route: str, body: Any = None) -> list[Any]:
    payload = {"input": {"route": route, "method": method, "body": body}}
    headers = {"Content-Type": "application/json"}
    data = json.dumps(payload).encode()
    request = urllib.request.Request(f"{endpoint.url}/runsync", data, headers)
    with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
        report = json.load(answer)
    assert report["status"] == "COMPLETED", report
    output: list[Any] = report["output"]
    return output


def test_files_work_as_jobs(make_endpoint: LocalEndpoint) -> None:
    body = {"purpose": "batch", "filename": "a.jsonl", "content": LINES.decode()}
    (file,) = run(make_endpoint, "POST", "/v1/files", body)
    assert file["bytes"] == len(LINES)
    (page,) = run(make_endpoint, "GET", "/v1/files?purpose=batch&limit=1")
    assert page["first_id"] == file["id"]
    parts = run(make_endpoint, "GET", f"/v1/files/{file['id']}/content")
    assert len(parts) > 1
    assert "".join(parts).encode() == LINES
    (gone,) = run(make_endpoint, "POST", f"/v1/files/{file['id']}/delete")
    assert gone["deleted"]


def test_the_gateway_lists_files_for_the_client(
    make_endpoint: LocalEndpoint, client: OpenAI
) -> None:
    (file,) = run(make_endpoint, "POST", "/v1/files", {"purpose": "evals", "content": "a"})
    assert file["id"] in [one.id for one in client.files.list()]
    assert client.files.retrieve(file["id"]).bytes == 1
