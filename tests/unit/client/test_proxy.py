"""The proxy, against an emulator with a function in place of its workers."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import pytest
from support.processes.background import HUNG_S
from support.scripted_endpoint import HANGS, Answer, only_job, proxied
from support.tables import web_pages

from emulator import Emulator, Status
from llm_worker_client import proxy

CONTENT = b"\0\xff" * 700_000


@pytest.fixture
def answer() -> Answer:
    def answer(given: Any) -> list[Any]:
        route = given.get("openai_route") or given.get("route")
        if route is not None and "/content" in route:
            return [{"content_base64": base64.b64encode(CONTENT).decode()}]
        body = given.get("openai_input") or {}
        if body.get("prompt") == HANGS:
            return ["data: 1\n\n", HANGS] if body.get("stream") else [HANGS]
        return [given]

    return answer


@asynccontextmanager
async def client_of(
    emulator: Emulator, key: str | None = None, **options: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """Start a proxy; yield a client of it."""
    async with (
        proxied(emulator, key, **options) as url,
        httpx2.AsyncClient(base_url=url, timeout=HUNG_S) as opened,
    ):
        yield opened


@pytest.fixture
async def proxy_client(emulator: Emulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(emulator) as opened:
        yield opened


async def test_every_verb_reaches_the_worker(proxy_client: httpx2.AsyncClient) -> None:
    for method in ("PUT", "DELETE", "POST"):
        answer = await proxy_client.request(method, "/v1/files/a%2Fb?x=1")
        assert answer.json() == {"route": "/v1/files/a%2Fb?x=1", "method": method, "body": None}
    answer = await proxy_client.get("/v1/files?limit=1")
    assert answer.json() == {"openai_route": "/v1/files?limit=1", "openai_input": None}
    head = await proxy_client.head("/v1/files")
    assert (head.status_code, head.content) == (200, b"")


async def test_forms_and_bytes_pass(proxy_client: httpx2.AsyncClient) -> None:
    files = {"file": ("a.bin", b"\0\xff")}
    answer = await proxy_client.post("/v1/files", data={"purpose": "evals"}, files=files)
    body = {"purpose": "evals", "filename": "a.bin", "content_base64": "AP8="}
    assert answer.json()["openai_input"] == body
    assert (await proxy_client.get("/v1/files/file-1/content")).content == CONTENT


async def test_the_platforms_own_api_is_there(proxy_client: httpx2.AsyncClient) -> None:
    answer = (await proxy_client.post("/v2/local/runsync", json={"input": {"prompt": "a"}})).json()
    assert (answer["status"], answer["output"]) == ("COMPLETED", [{"prompt": "a"}])
    assert (await proxy_client.get(f"/v2/local/status/{answer['id']}")).json() == answer
    assert "workers" in (await proxy_client.get("/v2/local/health")).json()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_job_of_a_caller_that_hangs_up_is_cancelled(
    proxy_client: httpx2.AsyncClient, emulator: Emulator, stream: bool
) -> None:
    body = {"prompt": HANGS, "stream": stream}
    if stream:
        async with proxy_client.stream("POST", "/v1/completions", json=body) as answer:
            assert await anext(answer.aiter_bytes()) == b"data: 1\n\n"
    else:
        asking = asyncio.create_task(proxy_client.post("/v1/completions", json=body))
        await only_job(emulator)
        asking.cancel()
    job = await only_job(emulator)
    assert await job.wait_ended(HUNG_S)
    assert job.status is Status.CANCELLED


async def test_a_proxy_that_ends_cancels_what_still_runs(emulator: Emulator) -> None:
    async with client_of(emulator) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": HANGS}))
        job = await only_job(emulator)
        asking.cancel()
    assert job.status is Status.CANCELLED


# Who may call:


@pytest.mark.parametrize(("headers", "answered"), web_pages.ANSWERED)
async def test_programs_are_answered_and_a_web_page_wakes_no_worker(
    proxy_client: httpx2.AsyncClient, emulator: Emulator, headers: dict[str, str], answered: bool
) -> None:
    for method in ("GET", "POST"):
        status = await web_pages.status(f"{proxy_client.base_url}", headers, "/v1/models", method)
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
async def test_callers_need_a_key(emulator: Emulator, headers: dict[str, str], status: int) -> None:
    named = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    async with client_of(emulator, "sk-mine") as client:
        assert (await client.get("/v1/models", headers=named)).status_code == status


async def test_a_refusal_is_in_the_words_of_the_caller(emulator: Emulator) -> None:
    async with client_of(emulator, "sk-mine") as client:
        anthropics = (await client.post("/v1/messages", json={})).json()
        llm_engines = (await client.get("/v1/llm/fine-tunes")).json()
    assert anthropics["type"] == "error"
    assert "missing or wrong" in llm_engines["detail"]
    assert emulator.queue.jobs == {}


# How long, and how many:

# Of this one the answer comes first: nobody reads the body.
UNREAD = b"POST /v1/files HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000000\r\n\r\n{"


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx: ", UNREAD],
    ids=["silent", "no whole head", "a body that nobody reads"],
)
async def test_a_connection_without_a_request_ends(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(proxy, "LOOK_S", 0.1)
    async with proxied(emulator) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.02)
                    writer.write(b"a" if sent else b"")

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(HUNG_S):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        dripping.cancel()
        writer.close()
    assert emulator.queue.jobs == {}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return the looks at connections, in place of timers: the last is the one that is due."""
    made = list[Callable[[], None]]()

    def look_again(self: proxy.ProxyConnection) -> None:
        made.append(partial(self._look, self._waits(), self.cycle))

    monkeypatch.setattr(proxy.ProxyConnection, "_look_again", look_again)
    return made


async def test_a_request_that_takes_longer_than_the_looks_is_answered(
    emulator: Emulator, looks: list[Callable[[], None]]
) -> None:
    body = {"prompt": HANGS, "stream": True}
    async with (
        client_of(emulator) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"data: 1\n\n"
        for _ in range(3):
            looks[-1]()
        job = await only_job(emulator)
        emulator.queue.add_chunk(job, "data: 2\n\n")
        emulator.queue.complete(job, [])
        assert [part async for part in parts] == [b"data: 2\n\n"]


async def test_a_connection_with_short_requests_stays(
    emulator: Emulator, looks: list[Callable[[], None]]
) -> None:
    places = set[Any]()
    async with client_of(emulator) as client:
        for _ in range(5):
            # No other request is answered sooner.
            answer = await client.get("/", headers={"Host": "evil.example"})
            places.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            looks[-1]()
    assert len(places) == 1


async def test_a_connection_beyond_the_most_gets_a_503(emulator: Emulator) -> None:
    async with client_of(emulator, limit_concurrency=3) as client:
        port = client.base_url.port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert (await client.get("/v1/models")).status_code == 503
        for _, writer in silent:
            writer.close()
        async with asyncio.timeout(HUNG_S):
            while (await client.get("/v1/models")).status_code != 200:
                await asyncio.sleep(0.01)
