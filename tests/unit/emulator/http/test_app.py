"""All routes: access, the request log, and callers that send or read slowly."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from support.console import REQUESTS, check_headers, read_values, request_status
from support.processes.background import poll_until
from support.processes.emulator_peer import Peer, emulator_peer, with_options
from yarl import URL

from emulator import Emulator, Options, Status
from emulator.http.app import BODY_WINDOW_S, WINDOW_BYTES
from emulator.http.wire import READ_TIMEOUT_S

KEY = "secret"
Routes = list[tuple[str, str, int]]


def parse_routes(text: str) -> Routes:
    """Parse methods and paths, each with its status for an authorized request."""
    return [(method, path, int(status)) for method, path, status in map(str.split, text.split(","))]


FOR_CALLERS = parse_routes(
    "POST /run 400, POST /runsync 400, GET /stream/nope 404, GET /status/nope 404,"
    "POST /cancel/nope 404, POST /retry/nope 404, POST /purge-queue 200, GET /health 200,"
    "POST /openai/v1/completions 400, GET /control/faults 200, POST /control/faults 400,"
    "DELETE /control/faults 200, GET /control/jobs 200, GET /control/jobs/nope 404,"
    "GET /control/workers 200, POST /control/workers/nope/signal 404"
)
FOR_WORKERS = parse_routes(
    "GET /job-take/w 204, GET /job-take-batch/w?batch_size=2 204, GET /job-stop/w 204,"
    "POST /job-stream/w/nope 404, POST /job-done/w/nope 404, GET /ping/w 200"
)


async def call_routes(peer: Peer, routes: Routes, header: str | None) -> Routes:
    """Call the routes; return each with the status of its response."""
    headers = {} if header is None else {"Authorization": header}
    return [
        (method, path, (await peer.request(method, path, headers=headers))[0])
        for method, path, _ in routes
    ]


@with_options(api_key=KEY)
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer secret2"])
async def test_a_caller_without_the_key_is_refused_and_a_worker_is_not(
    peer: Peer, header: str | None
) -> None:
    refused = [(method, path, 401) for method, path, _ in FOR_CALLERS]
    assert await call_routes(peer, FOR_CALLERS, header) == refused
    assert await call_routes(peer, FOR_WORKERS, header) == FOR_WORKERS


@with_options(api_key=KEY)
async def test_a_key_that_is_not_utf8_is_refused(peer: Peer) -> None:
    answer = await peer.request_raw("GET", "/health", headers=b"Authorization: Bearer \xff\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    error = "GET /v2/local/health: the API key is missing or wrong"
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": error}


@pytest.mark.parametrize(
    ("key", "header"), [(KEY, "Bearer secret"), ("clé", "clé"), (None, None), (None, "Bearer any")]
)
async def test_callers_need_the_key_only_if_the_endpoint_has_one(
    key: str | None, header: str | None
) -> None:
    async with emulator_peer(api_key=key) as peer:
        assert await call_routes(peer, FOR_CALLERS, header) == FOR_CALLERS


@pytest.mark.parametrize("key", [None, KEY])
async def test_programs_are_answered_and_web_pages_are_refused(key: str | None) -> None:
    async with Emulator(Options(api_key=key)) as emulator:
        workers = str(URL(emulator.worker_url).origin())
        urls = (
            f"{emulator.url}/health",
            f"{workers}/v2/local/job-take/x",
            f"{emulator.root_url}/control/faults",
            emulator.root_url,
        )
        for headers, is_answered in REQUESTS:
            job = emulator.queue.submit({"input": {}})
            for url in map(URL, urls):
                sent = headers | {"Authorization": f"Bearer {KEY}"}
                status = await request_status(str(url.origin()), sent, url.path)
                assert (sent, url, status) == (sent, url, 200 if is_answered else 403)
            assert job.status is (Status.IN_PROGRESS if is_answered else Status.IN_QUEUE)


@pytest.mark.parametrize(("key", "value"), [(None, ""), (KEY, "needed")])
async def test_the_console_needs_no_key(
    session: ClientSession, key: str | None, value: str
) -> None:
    async with (
        Emulator(Options(api_key=key, endpoint="mine")) as emulator,
        session.get(f"{emulator.root_url}/") as response,
    ):
        page = await response.text()
        check_headers(response.headers, page)
    assert read_values(page) == {"server": "emulator", "endpoint": "/v2/mine", "key": value}


async def test_workers_and_callers_reach_an_emulator_that_listens_on_all_addresses(
    session: ClientSession,
) -> None:
    async with Emulator(Options(host="0.0.0.0")) as emulator:
        assert URL(emulator.root_url).host == "127.0.0.1"
        for url in (emulator.url, emulator.worker_url):
            async with session.get(f"{url}/health") as answer:
                assert answer.status == 200


# The request log: one line of JSON per request:


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "requests.jsonl"
    file.write_text("of an earlier emulator\n")
    return file


@pytest.fixture
async def logged(log: Path) -> AsyncIterator[Peer]:
    async with emulator_peer(request_log=log, long_poll_s=600) as running:
        yield running


def read_log(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def test_each_request_is_a_line_with_its_status(logged: Peer, log: Path) -> None:
    start = time.time()
    await logged.request("POST", "/run", data=b'{"input": "\xc3\xbc"}')
    await logged.request("GET", "/status/nope?ttl=5")
    await logged.request("GET", "/control/jobs")
    # A line is written with its response, not only on exit.
    entries = read_log(log)
    keys = ("method", "path", "status", "bytes_in")
    assert [tuple(line[key] for key in keys) for line in entries] == [
        ("POST", "/v2/local/run", 200, 15),
        ("GET", "/v2/local/status/nope?ttl=5", 404, 0),
        ("GET", "/control/jobs", 200, 0),
    ]
    for line in entries:
        assert {*line} == {"at", "ms", "bytes_out", *keys}
        assert start - 60 < line["at"] < time.time() + 60
        assert line["bytes_out"] > 0


@pytest.mark.parametrize("fault", [{"do": "status"}, {"do": "delay", "delay_s": 0.01}])
async def test_the_fault_that_affected_a_request_is_logged(
    logged: Peer, log: Path, fault: dict[str, Any]
) -> None:
    await logged.run()
    await logged.add_fault(on="take", **fault)
    await logged.request_raw("GET", "/job-take/w")
    await poll_until(lambda: read_log(log)[-1]["path"].endswith("/w"))
    assert read_log(log)[-1]["fault"] == fault["do"]


async def test_an_emulator_that_cannot_start_leaves_the_log_unchanged(
    logged: Peer, log: Path, tmp_path: Path
) -> None:
    await logged.get("/health")
    port = int(logged.emulator.root_url.rpartition(":")[2])
    for options, problem in (
        (Options(port=port, request_log=log), "address already in use"),
        (Options(request_log=tmp_path), "Is a directory"),
    ):
        with pytest.raises(OSError, match=problem):
            await Emulator(options).__aenter__()
    assert len(read_log(log)) == 1


# Callers that send their requests, or read the responses, slowly or never:


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


async def test_the_connection_of_a_caller_that_does_not_read_a_result_is_closed(
    tmp_path: Path,
) -> None:
    log, size = tmp_path / "requests.jsonl", 0
    async with emulator_peer(request_log=log) as peer:
        job = await peer.start()
        peer.queue.complete(peer.queue.jobs[job], LARGE)
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
    peer.queue.complete(peer.queue.jobs[job], LARGE)
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
        while peer.queue.jobs[job].status is Status.IN_PROGRESS:
            peer.advance_clock(READ_TIMEOUT_S)
            await asyncio.sleep(0.01)
    assert peer.queue.jobs[job].status is Status.CANCELLED


async def test_many_jobs_are_listed_in_parts(peer: Peer) -> None:
    assert await peer.get("/control/jobs") == {"jobs": []}
    jobs = [peer.queue.submit({"input": 1}).id for _ in range(250)]
    assert [job["id"] for job in (await peer.get("/control/jobs"))["jobs"]] == jobs
