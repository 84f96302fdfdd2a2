"""The proxy, against an emulator with a function in place of its workers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.deployed import HANGS, Failed, deployed, proxied
from support.processes.background import HUNG_S
from support.tables import web_pages

from emulator import Emulator, Status

CONTENT = b"\0\xff" * 700_000


def answers(given: Any) -> list[Any]:
    route = given.get("openai_route") or given.get("route")
    if route is None:
        return [given]
    if "/content" in route:
        return [{"content_base64": base64.b64encode(CONTENT).decode()}]
    body = given.get("openai_input") or {}
    if body.get("prompt") == HANGS:
        return ["data: 1\n\n", HANGS] if body.get("stream") else [HANGS]
    if body.get("prompt") == "fail":
        raise Failed(json.dumps({"error": {"message": "no", "code": 409, "type": "ConflictError"}}))
    return [given]


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with deployed(answers) as running:
        yield running


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    async with proxied(emulator) as url, httpx.AsyncClient(base_url=url, timeout=HUNG_S) as opened:
        yield opened


async def test_every_verb_reaches_the_worker(client: httpx.AsyncClient) -> None:
    for method in ("PUT", "DELETE", "POST"):
        answer = await client.request(method, "/v1/files/a%2Fb?x=1")
        assert answer.json() == {"route": "/v1/files/a%2Fb?x=1", "method": method, "body": None}
    answer = await client.get("/v1/files?limit=1")
    assert answer.json() == {"openai_route": "/v1/files?limit=1", "openai_input": None}
    head = await client.head("/v1/files")
    assert (head.status_code, head.content) == (200, b"")


async def test_forms_and_bytes_pass(client: httpx.AsyncClient) -> None:
    files = {"file": ("a.bin", b"\0\xff")}
    answer = await client.post("/v1/files", data={"purpose": "evals"}, files=files)
    body = {"purpose": "evals", "filename": "a.bin", "content_base64": "AP8="}
    assert answer.json()["openai_input"] == body
    assert (await client.get("/v1/files/file-1/content")).content == CONTENT


async def test_an_error_has_the_status_of_the_workers(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"prompt": "fail"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "no")
    assert answer.headers["x-request-id"]
    answer = await client.post("/v1/llm/completions-sync", json={"prompt": "fail"})
    assert (answer.status_code, answer.json()["detail"]) == (400, "no")


async def test_the_platforms_own_api_is_there(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v2/local/runsync", json={"input": {"prompt": "a"}})).json()
    assert (answer["status"], answer["output"]) == ("COMPLETED", [{"prompt": "a"}])
    assert (await client.get(f"/v2/local/status/{answer['id']}")).json() == answer
    assert "workers" in (await client.get("/v2/local/health")).json()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_job_of_a_caller_that_hangs_up_is_cancelled(
    client: httpx.AsyncClient, emulator: Emulator, stream: bool
) -> None:
    body = {"prompt": HANGS, "stream": stream}
    if stream:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert await anext(answer.aiter_bytes()) == b"data: 1\n\n"
    else:
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await emulator.queue.arrived.wait_for(lambda: bool(emulator.queue.jobs), HUNG_S)
        asking.cancel()
    (job,) = emulator.queue.jobs.values()
    assert await job.wait_ended(HUNG_S)
    assert job.status is Status.CANCELLED


async def test_a_proxy_that_ends_cancels_what_still_runs(emulator: Emulator) -> None:
    async with proxied(emulator) as url, httpx.AsyncClient(base_url=url, timeout=HUNG_S) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": HANGS}))
        await emulator.queue.arrived.wait_for(lambda: bool(emulator.queue.jobs), HUNG_S)
        asking.cancel()
    (job,) = emulator.queue.jobs.values()
    assert job.status is Status.CANCELLED


# Who may call:


@pytest.mark.parametrize(("headers", "answered"), web_pages.ANSWERED)
async def test_programs_are_answered_and_a_web_page_wakes_no_worker(
    client: httpx.AsyncClient, emulator: Emulator, headers: dict[str, str], answered: bool
) -> None:
    for method in ("GET", "POST"):
        status = await web_pages.status(f"{client.base_url}", headers, "/v1/models", method)
        assert status == (200 if answered else 403)
    assert len(emulator.queue.jobs) == (2 if answered else 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer sk-other"}, 401),
        ({"Authorization": "Bearer sk-mine"}, 200),
        ({"x-api-key": "sk-mine"}, 200),
        ({"Authorization": "Basic " + base64.b64encode(b"sk-mine:").decode()}, 200),
        ({"Authorization": "Basic ä"}, 401),
        ({"Authorization": "Bearer sk-mine", "Origin": "https://example.com"}, 200),
    ],
)
async def test_callers_have_a_key_of_their_own(
    emulator: Emulator, headers: dict[str, str], status: int
) -> None:
    named = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    async with (
        proxied(emulator, "sk-mine") as url,
        httpx.AsyncClient(base_url=url, timeout=HUNG_S) as client,
    ):
        answer = await client.get("/v1/models", headers=named)
    assert answer.status_code == status


async def test_a_refusal_is_in_the_words_of_the_caller(emulator: Emulator) -> None:
    async with (
        proxied(emulator, "sk-mine") as url,
        httpx.AsyncClient(base_url=url, timeout=HUNG_S) as client,
    ):
        anthropics = (await client.post("/v1/messages", json={})).json()
        llm_engines = (await client.get("/v1/llm/fine-tunes")).json()
    assert anthropics["type"] == "error"
    assert "missing or wrong" in llm_engines["detail"]
    assert emulator.queue.jobs == {}
