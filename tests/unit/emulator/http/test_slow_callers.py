"""Callers that send their requests, or read the responses, slowly or never."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.processes.emulator_peer import Peer, emulator_peer

from emulator import Status
from emulator.http.app import BODY_WINDOW_S, WINDOW_BYTES
from emulator.http.wire import READ_TIMEOUT_S

# More than the kernel buffers.
LARGE = "x" * 16_000_000
MEGABYTE = 1_000_000


@asynccontextmanager
async def send_request(
    peer: Peer, method: str, path: str, size: int = 0, body: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a request with a part of its body; yield the streams; the kernel buffers little."""
    host, _, port = peer.emulator.root_url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    target = peer.url(path).removeprefix(peer.emulator.root_url)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n".encode())
    writer.write(f"Content-Length: {size}\r\n\r\n".encode() + body)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def let_time_pass(peer: Peer, seconds: float, events: asyncio.Task[bytes]) -> bytes:
    """Advance the clock, again and again, until something has been read; return it."""
    while not events.done():
        peer.advance_clock(seconds)
        await asyncio.sleep(0.01)
    return await events


@pytest.mark.parametrize(
    "path", ["/run", "/openai/v1/completions", "/control/faults", "/job-done/w/{job}"]
)
async def test_a_body_that_stops_is_refused(peer: Peer, path: str) -> None:
    job = await peer.start()
    request = send_request(peer, "POST", path.format(job=job), MEGABYTE, b'{"input": ')
    async with request as (reader, _):
        reading = asyncio.create_task(reader.readuntil(b"}"))
        response = await let_time_pass(peer, BODY_WINDOW_S, reading)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"the body came slower than 300,000 bytes in 30 s" in response


async def test_a_body_may_take_long_if_it_is_steady(peer: Peer) -> None:
    body = json.dumps({"input": "x" * (9 * MEGABYTE)}).encode()
    async with send_request(peer, "POST", "/run", len(body)) as (reader, writer):
        for start in range(0, len(body), 3 * WINDOW_BYTES):
            writer.write(body[start : start + 3 * WINDOW_BYTES])
            await writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
            peer.advance_clock(BODY_WINDOW_S / 2)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_the_route_ignores_may_be_incomplete(peer: Peer) -> None:
    async with send_request(peer, "GET", "/job-take/w", MEGABYTE) as (reader, _):
        reading = asyncio.create_task(reader.readuntil(b"\r\n"))
        assert (await let_time_pass(peer, BODY_WINDOW_S, reading)).startswith(b"HTTP/1.1 204 ")


async def test_the_connection_of_a_caller_that_does_not_read_a_result_is_closed(
    tmp_path: Path,
) -> None:
    log, size = tmp_path / "requests.jsonl", 0
    async with emulator_peer(request_log=log) as peer:
        job = await peer.start()
        peer.queue.complete(peer.emulator.get_job(job), LARGE)
        async with send_request(peer, "GET", f"/status/{job}") as (reader, _):
            await reader.readuntil(b"\r\n\r\n")
            while "/status/" not in log.read_text():
                peer.advance_clock(READ_TIMEOUT_S)
                await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(65_536):
                    size += len(part)
                    assert b"HTTP" not in part
        assert size < len(LARGE)
        assert (await peer.status_object(job))["output"] == LARGE


async def test_the_connection_of_a_caller_that_reads_slowly_stays_open(peer: Peer) -> None:
    job = await peer.start()
    peer.queue.complete(peer.emulator.get_job(job), LARGE)
    async with send_request(peer, "GET", f"/status/{job}") as (reader, _):
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(4):
            # More than the kernel has buffered, so that the emulator has written something.
            await reader.readexactly(len(LARGE) // 4)
            peer.advance_clock(0.7 * READ_TIMEOUT_S)


async def test_the_job_of_a_caller_that_does_not_read_its_stream_is_cancelled(peer: Peer) -> None:
    body = b'{"stream": true}'
    async with send_request(peer, "POST", "/openai/v1/completions", len(body), body):
        job = await peer.take()
        for _ in range(12):
            await peer.post_chunk(job, "x" * (MEGABYTE - 10))
        while peer.emulator.get_job(job).status is Status.IN_PROGRESS:
            peer.advance_clock(READ_TIMEOUT_S)
            await asyncio.sleep(0.01)
    assert peer.emulator.get_job(job).status is Status.CANCELLED


async def test_many_jobs_are_listed_in_parts(peer: Peer) -> None:
    assert await peer.get("/control/jobs") == {"jobs": []}
    jobs = [peer.queue.submit({"input": 1}).id for _ in range(250)]
    assert [job["id"] for job in (await peer.get("/control/jobs"))["jobs"]] == jobs
