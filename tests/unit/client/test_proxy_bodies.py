"""The bodies of requests to the proxy: when they are read, and their limits."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from support.processes.background import HUNG_S, poll_until
from support.scripted_endpoint import OutputsFunction, run_proxy

from emulator import Emulator
from llm_worker_client import proxy
from llm_worker_client.mapping.forms import MAX_FILE_BYTES
from llm_worker_client.mapping.responses import Refusal

KEY = "sk-mine"
COMPLETIONS = "POST /v1/completions"


@pytest.fixture
def answer() -> OutputsFunction:
    return lambda job_input: [job_input]


@asynccontextmanager
async def send_part(
    url: str, request: str, size: int, part: bytes, key: str = KEY, kind: str = "application/json"
) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request with a part of its body; yield the response, and hang up at the end.

    Args:
        url: URL of the proxy.
        request: Method and path.
        size: Bytes that the request announces.
        part: The bytes that it sends.
        key: The key that it sends.
        kind: The type of its body.
    """
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


async def read_slowly(monkeypatch: pytest.MonkeyPatch, part_size: int) -> int:
    """Return the size of a body of 100 parts, each of which takes 0.6 of the time limit."""
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

    body = proxy.ReceivedBody(send_parts(), proxy.BodyTotal())
    return sum([len(part) async for part in body.read_parts("too large")])


async def test_a_body_may_take_long_if_it_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    size = await read_slowly(monkeypatch, proxy.WINDOW_BYTES)
    assert size == 100 * proxy.WINDOW_BYTES


async def test_a_body_that_becomes_slow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refusal, match="slower than 300,000 bytes in 30 s") as refusal:
        await read_slowly(monkeypatch, proxy.WINDOW_BYTES // 3)
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


async def post(url: str, body: bytes) -> int:
    async with send_part(url, COMPLETIONS, len(body), body) as reader:
        return (await read_head(reader))[0]


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
