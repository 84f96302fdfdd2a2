"""The proxy, against an emulator with a function in place of its workers."""

import asyncio
import base64
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from support.console import REQUESTS, check_headers, read_values, request_status
from support.processes.background import HUNG_S, poll_until
from support.scripted_endpoint import HANG, OutputsFunction, only_job, run_proxy

from emulator import Emulator, Status
from llm_worker_client import proxy
from llm_worker_client.mapping.forms import MAX_FILE_BYTES
from llm_worker_client.mapping.responses import Refusal

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


# The bodies of requests, when they are read, and their limits:

COMPLETIONS = "POST /v1/completions"


@asynccontextmanager
async def send_part(
    url: str, request: str, size: int, part: bytes, key: str = KEY, kind: str = "application/json"
) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request with a part of a body of ``size``; yield the response, and hang up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    lines = [f"{request} HTTP/1.1", "Host: localhost", f"x-api-key: {key}"]
    lines += [f"Content-Length: {size}", f"Content-Type: {kind}", "", ""]
    writer.write("\r\n".join(lines).encode() + part)
    try:
        async with asyncio.timeout(HUNG_S):
            await writer.drain()
            yield reader
    finally:
        writer.close()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Return the status and the headers of a response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(head.split()[1]), head


async def post(url: str, body: bytes) -> int:
    async with send_part(url, COMPLETIONS, len(body), body) as reader:
        return (await read_head(reader))[0]


@pytest.mark.parametrize(
    ("request_line", "key", "status"),
    [
        (COMPLETIONS, "sk-other", 401),
        ("PUT /v1/files", "", 401),
        ("GET /v1/models", "", 401),
        # The console's page, which needs no key.
        ("GET /", "", 200),
        ("GET /v1/models", KEY, 200),
        ("GET /v2/local/health", KEY, 200),
        # Workers have no such route.
        ("POST /v1/audio/transcriptions", KEY, 200),
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
async def test_a_body_is_not_read_without_the_key_or_where_it_has_no_meaning(
    emulator: Emulator, request_line: str, key: str, status: int, kind: str
) -> None:
    async with (
        run_proxy(emulator, KEY) as url,
        send_part(url, request_line, 10**9, b"--b", key, kind) as reader,
    ):
        assert (await read_head(reader))[0] == status


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("zstd", 415), ("identity", 200)])
async def test_a_compressed_body_is_refused_by_its_header(
    emulator: Emulator, encoding: str, status: int
) -> None:
    content = b'{"prompt": "Hi"}' if status == 200 else gzip.compress(b'{"prompt": "Hi"}')
    headers = {"content-type": "application/json", "content-encoding": encoding}
    async with run_proxy(emulator) as url, httpx2.AsyncClient() as client:
        response = await client.post(f"{url}/v1/completions", content=content, headers=headers)
    assert response.status_code == status
    assert (f"Content-Encoding is '{encoding}'" in response.text) == (status == 415)
    assert len(emulator.queue.jobs) == (status == 200)


async def test_a_body_that_stops_is_refused(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "BODY_WINDOW_S", 0.05)
    async with (
        run_proxy(emulator, KEY) as url,
        send_part(url, COMPLETIONS, 100, b"{") as reader,
    ):
        assert (await read_head(reader))[0] == 408
    assert emulator.queue.jobs == {}


@pytest.mark.parametrize("part_size", [proxy.WINDOW_BYTES, proxy.WINDOW_BYTES // 3])
async def test_a_body_may_take_long_unless_it_becomes_slow(
    monkeypatch: pytest.MonkeyPatch, part_size: int
) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def send_parts() -> AsyncIterator[bytes]:
        nonlocal now
        for _ in range(100):
            now += 0.6 * proxy.BODY_WINDOW_S
            # The timeout's callback, and the task that it cancels.
            for _ in range(3):
                await asyncio.sleep(0)
            yield bytes(part_size)

    parts = proxy.ReceivedBody(send_parts(), proxy.BodyTotal()).read_parts("too large")
    if part_size == proxy.WINDOW_BYTES:
        assert sum([len(part) async for part in parts]) == 100 * part_size
        return
    with pytest.raises(Refusal, match="slower than 300,000 bytes in 30 s") as refusal:
        [part async for part in parts]
    assert refusal.value.status == 408


async def test_large_bodies_are_refused_while_all_together_have_the_maximum(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"{" + b" " * 150_000
    monkeypatch.setattr(proxy, "MAX_BODIES_BYTES", len(large) + 5)
    total = proxy.BodyTotal()
    monkeypatch.setattr(proxy, "BodyTotal", lambda: total)
    async with run_proxy(emulator, KEY) as url:
        async with send_part(url, COMPLETIONS, 10**6, large):
            await poll_until(lambda: total.size == len(large))
            async with send_part(url, COMPLETIONS, 10**6, large) as reader:
                status, head = await read_head(reader)
                assert (status, "retry-after: 1" in head) == (503, True)
            assert await post(url, b'{"prompt": "a"}') == 200
        await poll_until(lambda: total.size == 0)
        assert await post(url, large + b"}") == 200
        assert total.size == 0


@pytest.mark.parametrize("size", [1_000, MAX_FILE_BYTES + 1_000])
async def test_a_large_file_counts_as_on_the_disk(size: int) -> None:
    async def send_parts() -> AsyncIterator[bytes]:
        yield bytes(size)

    total = proxy.BodyTotal()
    body = proxy.ReceivedBody(send_parts(), total)
    parts: Any = body.read_parts(None, max_in_memory=MAX_FILE_BYTES)
    assert [len(part) async for part in parts] == [size]
    assert total.size == min(size, MAX_FILE_BYTES)
    body.release()
    assert total.size == 0
