"""Large answers of the proxy to callers that don't read them, or read slowly."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

import pytest
from support.processes.background import HUNG_S, poll_until
from support.scripted_endpoint import OutputsFunction, run_proxy

from emulator import Emulator
from llm_worker_client import proxy, wire

# More than the kernel buffers.
LARGE = "x" * 18_000_000
LARGE_ROUTE, SMALL_ROUTE, CONTENT_ROUTE = "/v1/large", "/v1/small", "/v1/files/f/content"
CONTENT = bytes(1_000_000)


@pytest.fixture
def answer() -> OutputsFunction:
    def answer(job_input: Any) -> list[Any]:
        route, _, query = job_input["openai_route"].partition("?")
        if route != CONTENT_ROUTE:
            return [LARGE if route == LARGE_ROUTE else "small"]
        offset, limit = (int(value) for _, value in parse_qsl(query))
        part = CONTENT[offset : offset + limit]
        return [{"content_base64": base64.b64encode(part).decode()}]

    return answer


@asynccontextmanager
async def send_request(url: str, route: str) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request; yield the response, of which the kernel buffers little; then hang up."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    await asyncio.get_running_loop().sock_connect(connection, address)
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    writer.write(f"GET {route} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    try:
        yield reader
    finally:
        writer.transport.abort()


async def read_status(url: str, route: str) -> int:
    async with send_request(url, route) as reader, asyncio.timeout(HUNG_S):
        return int((await reader.readuntil(b"\r\n")).split()[1])


@pytest.fixture(autouse=True)
def _one_large_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxy have only one large reply in memory."""
    monkeypatch.setattr(wire, "MAX_LARGE_REPLIES", 1)


@asynccontextmanager
async def unread_answer(url: str) -> AsyncIterator[None]:
    """Request a large answer, and read only its beginning."""
    async with send_request(url, LARGE_ROUTE) as reader:
        async with asyncio.timeout(HUNG_S):
            await reader.readuntil(b"\r\n")
        yield


def has_jobs(emulator: Emulator, count: int) -> Callable[[], bool]:
    return lambda: len(emulator.queue.jobs) == count


async def test_a_large_answer_waits_for_one_that_is_not_read_and_a_small_one_does_not(
    emulator: Emulator,
) -> None:
    async with run_proxy(emulator) as url:
        async with unread_answer(url):
            waiting = asyncio.create_task(read_status(url, LARGE_ROUTE))
            await poll_until(has_jobs(emulator, 2))
            for _ in range(5):
                assert await read_status(url, SMALL_ROUTE) == 200
            assert not waiting.done()
        assert await waiting == 200


@pytest.mark.parametrize(
    ("limit", "value"), [("LARGE_REPLY_WAIT_S", 0.01), ("MAX_WAITING_REPLIES", 0)]
)
async def test_a_large_answer_is_refused_if_it_would_wait_too_long(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    async with run_proxy(emulator) as url:
        async with unread_answer(url):
            with monkeypatch.context() as patch:
                patch.setattr(wire, limit, value)
                assert await read_status(url, LARGE_ROUTE) == 503
            assert await read_status(url, SMALL_ROUTE) == 200
        assert await read_status(url, LARGE_ROUTE) == 200


async def test_callers_that_hang_up_while_they_wait_block_no_others(emulator: Emulator) -> None:
    async with run_proxy(emulator) as url:
        async with unread_answer(url):
            for count in range(2, 5):
                async with send_request(url, LARGE_ROUTE):
                    await poll_until(has_jobs(emulator, count))
        for _ in range(3):
            assert await read_status(url, LARGE_ROUTE) == 200


async def test_a_file_needs_one_slot_for_all_its_parts(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_worker_client.exchange.CONTENT_PART_BYTES", 300_000)
    async with run_proxy(emulator) as url, send_request(url, CONTENT_ROUTE) as reader:
        async with asyncio.timeout(HUNG_S):
            received = 0
            while received < len(CONTENT):
                received += len(await reader.read(65_536))
    assert len(emulator.queue.jobs) == 4


async def test_the_connection_of_a_caller_that_does_not_read_is_closed(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "IDLE_CHECK_S", 0.1)
    aborted = asyncio.Event()
    lose_connection = proxy.ProxyConnection.connection_lost

    def connection_lost(self: proxy.ProxyConnection, error: Exception | None) -> None:
        lose_connection(self, error)
        aborted.set()

    monkeypatch.setattr(proxy.ProxyConnection, "connection_lost", connection_lost)
    async with run_proxy(emulator) as url, send_request(url, LARGE_ROUTE) as reader:
        async with asyncio.timeout(HUNG_S):
            await aborted.wait()
            size = 0
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(65_536):
                    size += len(part)
    assert size < len(LARGE)


async def test_the_connection_of_a_slow_caller_stays_open(
    emulator: Emulator, idle_checks: list[Callable[[], None]]
) -> None:
    async with run_proxy(emulator) as url, send_request(url, LARGE_ROUTE) as reader:
        async with asyncio.timeout(HUNG_S):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(4):
                # More than the kernel has buffered, so that the proxy has sent something.
                await reader.readexactly(len(LARGE) // 4)
                idle_checks[-1]()
