"""The proxy, against an emulator with a function in place of its workers."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from support.console import REQUESTS, check_headers, read_values, request_status
from support.processes.background import HUNG_S
from support.scripted_endpoint import HANG, OutputsFunction, only_job, run_proxy

from emulator import Emulator, Status
from llm_worker_client import proxy

CONTENT = b"\0\xff" * 700_000


@pytest.fixture
def answer() -> OutputsFunction:
    def answer(job_input: Any) -> list[Any]:
        route = job_input.get("openai_route") or job_input.get("route")
        if route is not None and "/content" in route:
            return [{"content_base64": base64.b64encode(CONTENT).decode()}]
        body = job_input.get("openai_input") or {}
        if body.get("prompt") == HANG:
            return ["data: 1\n\n", HANG] if body.get("stream") else [HANG]
        return [job_input]

    return answer


@asynccontextmanager
async def open_client(
    emulator: Emulator, key: str | None = None, **options: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """Start a proxy; yield a client for it."""
    async with (
        run_proxy(emulator, key, **options) as url,
        httpx2.AsyncClient(base_url=url, timeout=HUNG_S) as client,
    ):
        yield client


@pytest.fixture
async def proxy_client(emulator: Emulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with open_client(emulator) as client:
        yield client


async def test_every_method_reaches_the_worker(proxy_client: httpx2.AsyncClient) -> None:
    for method in ("PUT", "DELETE", "POST"):
        answer = await proxy_client.request(method, "/v1/files/a%2Fb?x=1")
        assert answer.json() == {"route": "/v1/files/a%2Fb?x=1", "method": method, "body": None}
    answer = await proxy_client.get("/v1/files?limit=1")
    assert answer.json() == {"openai_route": "/v1/files?limit=1", "openai_input": None}
    head = await proxy_client.head("/v1/files")
    assert (head.status_code, head.content) == (200, b"")


async def test_forms_and_binary_content_pass(proxy_client: httpx2.AsyncClient) -> None:
    files = {"file": ("a.bin", b"\0\xff")}
    answer = await proxy_client.post("/v1/files", data={"purpose": "evals"}, files=files)
    body = {"purpose": "evals", "filename": "a.bin", "content_base64": "AP8="}
    assert answer.json()["openai_input"] == body
    assert (await proxy_client.get("/v1/files/file-1/content")).content == CONTENT


async def test_the_proxy_serves_the_platforms_own_api(proxy_client: httpx2.AsyncClient) -> None:
    answer = (await proxy_client.post("/v2/local/runsync", json={"input": {"prompt": "a"}})).json()
    assert (answer["status"], answer["output"]) == ("COMPLETED", [{"prompt": "a"}])
    assert (await proxy_client.get(f"/v2/local/status/{answer['id']}")).json() == answer
    assert "workers" in (await proxy_client.get("/v2/local/health")).json()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_job_of_a_caller_that_hangs_up_is_cancelled(
    proxy_client: httpx2.AsyncClient, emulator: Emulator, stream: bool
) -> None:
    body = {"prompt": HANG, "stream": stream}
    if stream:
        async with proxy_client.stream("POST", "/v1/completions", json=body) as answer:
            assert await anext(answer.aiter_bytes()) == b"data: 1\n\n"
    else:
        asking = asyncio.create_task(proxy_client.post("/v1/completions", json=body))
        await only_job(emulator)
        asking.cancel()
    job = await only_job(emulator)
    assert await job.wait_for_end(HUNG_S)
    assert job.status is Status.CANCELLED


async def test_a_proxy_cancels_running_jobs_when_it_exits(emulator: Emulator) -> None:
    async with open_client(emulator) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": HANG}))
        job = await only_job(emulator)
        asking.cancel()
    assert job.status is Status.CANCELLED


# Access:


KEY = "sk-mine"


@pytest.mark.parametrize("key", [None, KEY])
async def test_programs_get_responses_and_web_pages_start_no_jobs(
    emulator: Emulator, key: str | None
) -> None:
    async with run_proxy(emulator, key) as url:
        for headers, is_answered in REQUESTS:
            job_count = len(emulator.queue.jobs)
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/models"), ("GET", "/")):
                sent = headers | {"x-api-key": KEY}
                status = await request_status(url, sent, path, method)
                assert (sent, path, status) == (sent, path, 200 if is_answered else 403)
            assert len(emulator.queue.jobs) == job_count + (2 if is_answered else 0)


async def test_a_proxy_that_serves_other_machines_is_called_by_any_name_with_the_key(
    emulator: Emulator,
) -> None:
    async with run_proxy(emulator, KEY, serves_network=True) as url:
        for headers, _ in REQUESTS:
            assert await request_status(url, headers, "/v1/models") == 401
            sent = headers | {"x-api-key": KEY}
            assert await request_status(url, sent, "/v1/models") == 200


async def test_a_refused_web_page_gets_the_remedy(proxy_client: httpx2.AsyncClient) -> None:
    for header in ({"Host": "proxy.example.com"}, {"Origin": "https://example.com"}):
        error = (await proxy_client.get("/v1/models", headers=header)).json()["error"]
        assert "PROXY_API_KEY and another --host than 127.0.0.1" in error["message"]


@pytest.mark.parametrize(("key", "value"), [(None, ""), (KEY, "needed")])
async def test_the_console_needs_no_key_and_starts_no_job(
    emulator: Emulator, key: str | None, value: str
) -> None:
    async with open_client(emulator, key) as client:
        response = await client.get("/")
    check_headers(response.headers, response.text)
    assert read_values(response.text) == {"server": "proxy", "endpoint": "/v2/local", "key": value}
    assert len(emulator.queue.jobs) == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer sk-other"}, 401),
        ({"Authorization": "Bearer sk-mine"}, 200),
        ({"x-api-key": "sk-mine"}, 200),
        ({"Authorization": "Basic " + base64.b64encode(b"sk-mine:").decode()}, 200),
        ({"Authorization": "Basic ä"}, 401),
    ],
)
async def test_callers_need_a_key(emulator: Emulator, headers: dict[str, str], status: int) -> None:
    raw_headers = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    async with open_client(emulator, KEY) as client:
        assert (await client.get("/v1/models", headers=raw_headers)).status_code == status


async def test_a_refusal_has_the_format_of_the_callers_dialect(emulator: Emulator) -> None:
    async with open_client(emulator, KEY) as client:
        anthropics = (await client.post("/v1/messages", json={})).json()
        llm_engines = (await client.get("/v1/llm/fine-tunes")).json()
    assert anthropics["type"] == "error"
    assert "missing or wrong" in llm_engines["detail"]
    assert emulator.queue.jobs == {}


# Idle timeout and connection limit:

# The proxy responds to this request without reading its body.
UNREAD = b"POST /v1/files HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000000\r\n\r\n{"


@pytest.mark.parametrize(
    "data",
    [b"", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx: ", UNREAD],
    ids=["silent", "incomplete head", "unread body"],
)
async def test_a_connection_without_a_complete_request_is_closed(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(proxy, "IDLE_CHECK_S", 0.1)
    async with run_proxy(emulator) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(data)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.02)
                    writer.write(b"a" if data else b"")

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(HUNG_S):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        dripping.cancel()
        writer.close()
    assert emulator.queue.jobs == {}


async def test_a_request_that_outlasts_idle_checks_is_answered(
    emulator: Emulator, idle_checks: list[Callable[[], None]]
) -> None:
    body = {"prompt": HANG, "stream": True}
    async with (
        open_client(emulator) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"data: 1\n\n"
        for _ in range(3):
            idle_checks[-1]()
        job = await only_job(emulator)
        emulator.queue.add_chunk(job, "data: 2\n\n")
        emulator.queue.complete(job, [])
        assert [part async for part in parts] == [b"data: 2\n\n"]


async def test_a_connection_with_short_requests_stays_open(
    emulator: Emulator, idle_checks: list[Callable[[], None]]
) -> None:
    addresses = set[Any]()
    async with open_client(emulator) as client:
        for _ in range(5):
            # This request gets the fastest response.
            answer = await client.get("/", headers={"Host": "evil.example"})
            addresses.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            idle_checks[-1]()
    assert len(addresses) == 1


async def test_a_connection_beyond_the_limit_gets_a_503(emulator: Emulator) -> None:
    async with open_client(emulator, limit_concurrency=3) as client:
        port = client.base_url.port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert (await client.get("/v1/models")).status_code == 503
        for _, writer in silent:
            writer.close()
        async with asyncio.timeout(HUNG_S):
            while (await client.get("/v1/models")).status_code != 200:
                await asyncio.sleep(0.01)
