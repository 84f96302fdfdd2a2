"""Misbehaving clients on the open network, tested with raw sockets and short limits."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine.connections import Connection, ServerPort, http_request, serve_http
from support.engine.scripted import CHAT, HANG, ScriptedEngine, static_app, tokens
from support.processes.background import HUNG_S, poll_until
from support.processes.memory import MB, peak_bytes, reset_peaks
from support.serve_client import HELLO, KEY

BODY = json.dumps(HELLO).encode()
STREAM = json.dumps({**HELLO, "stream": True}).encode()
SHORT = {"SERVE_TIMEOUT_S": "0.2"}
CLOSE = "connection: close\r\n"
PING = http_request(path="/ping", method="GET", headers=CLOSE)
KEEP_ALIVE_PING = http_request(path="/ping", method="GET")
WHOLE_REQUEST = http_request(BODY, headers=CLOSE)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", CHAT, b"401"),
        ("GET", "/ping", b"200"),
        ("GET", "/health", b"200"),
        ("POST", "/ping", b"405"),
    ],
)
async def test_the_server_answers_without_the_body_if_the_key_is_missing_or_unneeded(
    engine: ScriptedEngine, method: str, path: str, status: bytes
) -> None:
    async with serve_http(engine, **KEY) as port:
        client = await port.connect()
        client.send(http_request(length=10**12, path=path, method=method))
        assert (await client.read_head()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/chat/com",
        b"GET /ping HTTP/1.1\r\nhost: a\r\nx: ",
        # An unread body doesn't keep the connection open.
        http_request(length=10**9, headers="authorization: Bearer no\r\n") + b"{",
    ],
)
async def test_a_client_without_a_complete_head_is_disconnected(
    engine: ScriptedEngine, sent: bytes
) -> None:
    async with serve_http(engine, **KEY, **SHORT) as port:
        client = await port.connect()
        client.send(sent)
        drip_task = asyncio.create_task(send_slowly(client))
        await client.read_all()
        drip_task.cancel()
        assert await wait_for_response(port, PING)


async def send_slowly(client: Connection) -> None:
    """Send one byte at a time, as an attacker does to keep a connection open."""
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(0.05)
            client.send(b"a")


async def test_a_body_that_arrives_too_slowly_is_refused(engine: ScriptedEngine) -> None:
    async with serve_http(engine, **SHORT) as port:
        client = await port.connect()
        client.send(http_request(length=1_000_000) + b'{"messages": "')
        drip_task = asyncio.create_task(send_slowly(client))
        head = await client.read_head()
        drip_task.cancel()
    assert head.startswith(b"HTTP/1.1 408")
    assert engine.requests == []


async def read_slowly(client: Connection) -> None:
    with contextlib.suppress(ConnectionError):
        while await client.reader.read(1_000):
            await asyncio.sleep(0.02)


async def read_nothing(_: Connection) -> None: ...


# For the kernel, the slow client is a client that reads.
@pytest.mark.parametrize("read", [read_nothing, read_slowly])
async def test_a_client_that_does_not_read_its_stream_in_time_is_disconnected(
    engine: ScriptedEngine, read: Callable[[Connection], Coroutine[Any, Any, None]]
) -> None:
    engine.script = (*tokens(*["x" * 50_000] * 200, finish=None), HANG)
    async with serve_http(engine, **SHORT) as port:
        client = await port.connect(limit=1024)
        client.send(http_request(STREAM))
        read_task = asyncio.create_task(read(client))
        await poll_until(lambda: len(engine.aborted_requests) == 1)
        read_task.cancel()
    assert engine.active_requests == []


async def test_clients_that_never_read_a_file_as_json_take_little_memory(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "large").write_text("ä" * 3_000_000)
    me = [os.getpid()]
    async with serve_http(engine, FILES_PATH=str(tmp_path)) as port:
        async with httpx.AsyncClient(base_url=port.url) as caller:
            file = (await caller.post("/v1/files", json={"path": "inbox/large"})).json()
        request = http_request(
            path=f"/v1/files/{file['id']}/content",
            method="GET",
            headers="accept: application/json\r\n",
        )
        reset_peaks(me)
        before = peak_bytes(me)
        for client in [await port.connect(limit=1024) for _ in range(30)]:
            client.send(request)
            assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        # Each whole answer has 6 MB, and its text 6 MB.
        assert peak_bytes(me) - before < 30 * 2 * MB


async def test_unread_answers_in_memory_are_limited_until_their_clients_are_gone(
    engine: ScriptedEngine,
) -> None:
    engine.slots = 100
    # More than the kernel's buffers.
    engine.app = static_app(json.dumps({"text": "a" * 9_000_000}))
    async with serve_http(engine, MAX_INPUT_MB="5") as port:
        clients = [await port.connect(limit=1024) for _ in range(8)]
        heads = []
        for client in clients:
            client.send(WHOLE_REQUEST)
            heads.append((await client.read_head()).split()[1])
        # The last answer may exceed the limit of 40 MB.
        assert heads == [b"200"] * 5 + [b"503"] * 3
        port.close()

        async def is_answered() -> bool:
            client = await port.connect()
            client.send(WHOLE_REQUEST)
            return (await client.read_head()).startswith(b"HTTP/1.1 200")

        async with asyncio.timeout(HUNG_S):
            while not await is_answered():
                await asyncio.sleep(0.01)


async def test_a_full_worker_refuses_a_request_before_its_body_is_read(
    engine: ScriptedEngine,
) -> None:
    engine.slots = 1
    engine.script = (*tokens("a", finish=None), HANG)
    async with serve_http(engine, MAX_CONCURRENCY="2") as port:
        running = [await port.connect() for _ in range(2)]
        for client in running:
            client.send(http_request(STREAM))
            await client.read_head()
        response = await port.exchange(http_request(length=1000, headers=CLOSE))
        assert response.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in response
        assert b'"retryable":true' in response
        # The worker's own routes are still answered.
        health = await port.exchange(http_request(path="/health", method="GET", headers=CLOSE))
        assert health.startswith(b"HTTP/1.1 200")
        engine.script = (*tokens("a"),)
        running[0].writer.close()
        assert await wait_for_response(port)


async def test_an_incomplete_body_takes_no_slot(engine: ScriptedEngine) -> None:
    engine.slots = 1
    engine.script = (*tokens("a"),)
    async with serve_http(engine, MAX_CONCURRENCY="2") as port:
        for client in [await port.connect() for _ in range(2)]:
            client.send(http_request(length=1000, headers="expect: 100-continue\r\n"))
            assert b"100 Continue" in await client.read_head()
        assert (await port.exchange(WHOLE_REQUEST)).startswith(b"HTTP/1.1 200")


async def wait_for_response(port: ServerPort, sent: bytes = WHOLE_REQUEST) -> bool:
    """Send a request until it is answered.

    The server may disconnect a client that a busy machine delays, and accepts a new client only
    after it has noticed that others have disconnected.
    """
    async with asyncio.timeout(HUNG_S):
        while not (await port.exchange(sent)).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0.01)
    return True


async def test_a_connection_above_the_limit_is_refused_if_all_others_have_requests(
    engine: ScriptedEngine,
) -> None:
    engine.script = (*tokens("a", finish=None), HANG)
    async with serve_http(engine, SERVE_MAX_CONNECTIONS="3") as port:
        streaming = [await port.connect() for _ in range(3)]
        for client in streaming:
            client.send(http_request(STREAM))
            await client.read_head()
        response = await port.exchange(PING)
        assert response.startswith(b"HTTP/1.1 503")
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["retryable"]
        # The port for pings has its own limit.
        assert (await port.health.exchange(PING)).startswith(b"HTTP/1.1 200")
        assert len(engine.active_requests) == 3
        streaming[0].writer.close()
        assert await wait_for_response(port, PING)


@pytest.mark.parametrize(
    ("sent", "rest"),
    [
        (b"", PING),
        (b"GET /ping HTTP/1.1\r\nhost: a\r\n", f"{CLOSE}\r\n".encode()),
        (KEEP_ALIVE_PING, PING),
    ],
    ids=["silent", "in the middle of a head", "idle after an answer"],
)
async def test_a_connection_above_the_limit_replaces_the_connection_idle_for_longest(
    engine: ScriptedEngine, sent: bytes, rest: bytes
) -> None:
    async with serve_http(engine, SERVE_MAX_CONNECTIONS="3") as port:
        for server_port in (port, port.health):
            clients = list[Connection]()
            for _ in range(5):
                clients.append(await server_port.connect())
                clients[-1].send(sent)
                if sent == KEEP_ALIVE_PING:
                    await clients[-1].read_head()
            assert (await server_port.exchange(PING)).startswith(b"HTTP/1.1 200")
            assert [await client.read_all() for client in clients[:3]] == [b""] * 3
            for client in clients[3:]:
                client.send(rest)
                assert (await client.read_all()).startswith(b"HTTP/1.1 200")


async def test_single_bytes_of_a_head_do_not_make_a_connection_active(
    engine: ScriptedEngine,
) -> None:
    async with serve_http(engine, SERVE_MAX_CONNECTIONS="2") as port:
        connections: set[Any] = port.server.server_state.connections
        slow_client, silent_client = await port.connect(), await port.connect()
        await poll_until(lambda: len(connections) == 2)
        slow_client.send(b"G")
        await poll_until(
            lambda: any(connection.conn.trailing_data[0] == b"G" for connection in connections)
        )
        assert (await port.exchange(PING)).startswith(b"HTTP/1.1 200")
        assert await slow_client.read_all() == b""
        silent_client.send(PING)
        assert (await silent_client.read_all()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/llm/model-files/a/b?expires=1&signature=canary", "/v1/llm/model-files/a/b"),
        ("//a?b?canary#canary", "//a"),
        ("/%3Fa?canary", "/%3Fa"),
        ("http://a/b?canary", "http%3A//a/b"),
        ("/" + "a" * 30_000 + "canary", "/" + "a" * 511),
        ("/" + "%F0%9F%98%80" * 2_000 + "canary", "/" + "%F0%9F%98%80" * 42 + "%F0%9F%"),
    ],
)
async def test_the_log_has_the_path_of_a_request_without_its_query(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, target: str, path: str
) -> None:
    caplog.set_level("INFO", "uvicorn.access")
    async with serve_http(engine) as port:
        response = await port.exchange(http_request(path=target, method="GET", headers=CLOSE))
    status = response[9:12].decode()
    lines = [one.getMessage() for one in caplog.records if one.name == "uvicorn.access"]
    assert [line.partition(" - ")[2] for line in lines] == [f'"GET {path} HTTP/1.1" {status}']


async def test_the_kernels_timeout_equals_the_servers(engine: ScriptedEngine) -> None:
    async with serve_http(engine, SERVE_TIMEOUT_S="7") as port:
        await port.connect()
        await poll_until(lambda: len(port.server.server_state.connections) == 1)
        (connection,) = port.server.server_state.connections
        connection_socket = connection.transport.get_extra_info("socket")
        assert connection_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_000


TWO_LENGTHS = "content-length: 5\r\nTransfer-Encoding: chunked\r\n"
LENGTHS_REVERSED = "Transfer-Encoding: chunked\r\ncontent-length: 5\r\n"


def chunked_request(method: str, path: str, headers: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n0\r\n\r\n".encode()


@pytest.mark.parametrize("headers", [TWO_LENGTHS, LENGTHS_REVERSED])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/ping"), ("HEAD", "/health"), ("POST", "/ping"), ("POST", CHAT)]
)
async def test_a_request_with_two_lengths_is_the_last_of_its_connection(
    engine: ScriptedEngine, method: str, path: str, headers: str
) -> None:
    async with serve_http(engine, **KEY) as port:
        request = chunked_request(method, path, headers)
        # It may also follow others in the same packet.
        for before in (0, 2):
            response = await port.exchange(KEEP_ALIVE_PING * before + request + KEEP_ALIVE_PING)
            assert response.count(b"HTTP/1.1 ") == before + 1
            assert response.count(b"connection: close") == 1


async def test_a_request_with_one_length_is_not_the_last_of_its_connection(
    engine: ScriptedEngine,
) -> None:
    async with serve_http(engine) as port:
        for headers in ("Transfer-Encoding: chunked\r\n", "content-length: 5\r\n"):
            request = chunked_request("GET", "/ping", headers)
            assert (await port.exchange(request + PING)).count(b"HTTP/1.1 200") == 2


CHUNKED = http_request(headers="transfer-encoding: chunked\r\n", length=0)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /ping HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"GET /ping HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n\r\n",  # no host
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        http_request(BODY, headers="content-length: 3\r\n"),
        *(CHUNKED + chunk for chunk in (b"zz\r\n", b"1" * 100_000)),
    ],
)
async def test_an_invalid_request_is_refused(engine: ScriptedEngine, sent: bytes) -> None:
    async with serve_http(engine, **SHORT) as port:
        response = await port.exchange(sent)
        assert response[9:12] in {b"", b"400", b"405"}
        assert b"Traceback" not in response
        assert await wait_for_response(port, PING)
    assert engine.requests == []
