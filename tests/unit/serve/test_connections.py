"""What clients on the open network may do to the server: by raw sockets, with short limits."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.engine.connections import Client, Port, request, serving
from support.engine.scripted import CHAT, HANG, ScriptedEngine, tokens
from support.processes.background import HUNG_S, eventually
from support.served import HELLO, KEY

BODY = json.dumps(HELLO).encode()
STREAM = json.dumps({**HELLO, "stream": True}).encode()
SHORT = {"SERVE_TIMEOUT_S": "0.2"}
CLOSE = "connection: close\r\n"
PING = request(path="/ping", method="GET", headers=CLOSE)
PINGED = request(path="/ping", method="GET")
WHOLE = request(BODY, headers=CLOSE)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", path, b"401") for path in (CHAT, "/metrics", "/v1/models")),
        *(("GET", path, b"200") for path in ("/ping", "/health")),
        *(("POST", path, b"405") for path in ("/ping", "/health")),
    ],
)
async def test_no_body_is_waited_for_without_the_key_or_where_all_are_answered(
    engine: ScriptedEngine, method: str, path: str, status: bytes
) -> None:
    async with serving(engine, **KEY) as port:
        client = await port.connect()
        client.send(request(length=10**12, path=path, method=method))
        assert (await client.head()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/chat/com",
        b"GET /ping HTTP/1.1\r\nhost: a\r\nx: ",
        # A body that nobody reads does not keep the connection either.
        request(length=10**9, headers="authorization: Bearer no\r\n") + b"{",
    ],
)
async def test_a_client_without_a_head_is_given_up(engine: ScriptedEngine, sent: bytes) -> None:
    async with serving(engine, **KEY, **SHORT) as port:
        client = await port.connect()
        client.send(sent)
        dripping = asyncio.create_task(drip(client))
        await client.all()
        dripping.cancel()
        assert await until_answered(port, PING)


async def drip(client: Client) -> None:
    """Send a byte again and again, as an attack does that wants to stay."""
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(0.05)
            client.send(b"a")


async def test_a_body_that_comes_too_slowly_is_refused(engine: ScriptedEngine) -> None:
    async with serving(engine, **SHORT) as port:
        client = await port.connect()
        client.send(request(length=1_000_000) + b'{"messages": "')
        dripping = asyncio.create_task(drip(client))
        head = await client.head()
        dripping.cancel()
    assert head.startswith(b"HTTP/1.1 408")
    assert engine.asked == []


async def read_slowly(client: Client) -> None:
    with contextlib.suppress(ConnectionError):
        while await client.reader.read(1_000):
            await asyncio.sleep(0.02)


async def read_nothing(_: Client) -> None: ...


# The kernel takes the second for one that reads.
@pytest.mark.parametrize("reads", [read_nothing, read_slowly])
async def test_a_client_that_does_not_read_its_stream_in_time_is_given_up(
    engine: ScriptedEngine, reads: Callable[[Client], Coroutine[Any, Any, None]]
) -> None:
    engine.script = (*tokens(*["x" * 50_000] * 200, finish=None), HANG)
    async with serving(engine, **SHORT) as port:
        client = await port.connect(limit=1024)
        client.send(request(STREAM))
        reading = asyncio.create_task(reads(client))
        await eventually(lambda: len(engine.aborted) == 1)
        reading.cancel()
    assert engine.generating == []


async def test_a_full_worker_refuses_a_request_before_its_body_is_read(
    engine: ScriptedEngine,
) -> None:
    engine.slots = 1
    engine.script = (*tokens("a", finish=None), HANG)
    async with serving(engine, MAX_CONCURRENCY="2") as port:
        running = [await port.connect() for _ in range(2)]
        for client in running:
            client.send(request(STREAM))
            await client.head()
        refused = await port.ask(request(length=1000, headers=CLOSE))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in refused
        assert b'"retryable":true' in refused
        # What the worker answers by itself is answered.
        health = await port.ask(request(path="/health", method="GET", headers=CLOSE))
        assert health.startswith(b"HTTP/1.1 200")
        engine.script = (*tokens("a"),)
        running[0].writer.close()
        assert await until_answered(port)


async def test_a_body_that_is_not_whole_takes_no_ones_place(engine: ScriptedEngine) -> None:
    engine.slots = 1
    engine.script = (*tokens("a"),)
    async with serving(engine, MAX_CONCURRENCY="2") as port:
        for client in [await port.connect() for _ in range(2)]:
            client.send(request(length=1000, headers="expect: 100-continue\r\n"))
            assert b"100 Continue" in await client.head()
        assert (await port.ask(WHOLE)).startswith(b"HTTP/1.1 200")


async def until_answered(port: Port, sent: bytes = WHOLE) -> bool:
    """Send a request until it is answered: the server may give up a client that a busy machine
    lets wait, and has room only once it has noticed that others have gone.
    """
    async with asyncio.timeout(HUNG_S):
        while not (await port.ask(sent)).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0.01)
    return True


async def test_a_connection_beyond_the_most_is_refused_if_all_work(engine: ScriptedEngine) -> None:
    engine.script = (*tokens("a", finish=None), HANG)
    async with serving(engine, SERVE_MAX_CONNECTIONS="3") as port:
        streaming = [await port.connect() for _ in range(3)]
        for client in streaming:
            client.send(request(STREAM))
            await client.head()
        refused = await port.ask(PING)
        assert refused.startswith(b"HTTP/1.1 503")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["retryable"]
        # The port for pings has room of its own.
        assert (await port.health.ask(PING)).startswith(b"HTTP/1.1 200")
        assert len(engine.generating) == 3
        streaming[0].writer.close()
        assert await until_answered(port, PING)


@pytest.mark.parametrize(
    ("sent", "rest"),
    [(b"", PING), (b"GET /ping HTTP/1.1\r\nhost: a\r\n", f"{CLOSE}\r\n".encode()), (PINGED, PING)],
    ids=["silent", "in the middle of a head", "idle after an answer"],
)
async def test_a_connection_beyond_the_most_takes_the_place_of_the_longest_without_a_request(
    engine: ScriptedEngine, sent: bytes, rest: bytes
) -> None:
    async with serving(engine, SERVE_MAX_CONNECTIONS="3") as port:
        for door in (port, port.health):
            clients = list[Client]()
            for _ in range(5):
                clients.append(await door.connect())
                clients[-1].send(sent)
                if sent == PINGED:
                    await clients[-1].head()
            assert (await door.ask(PING)).startswith(b"HTTP/1.1 200")
            assert [await client.all() for client in clients[:3]] == [b""] * 3
            for client in clients[3:]:
                client.send(rest)
                assert (await client.all()).startswith(b"HTTP/1.1 200")


async def test_a_byte_now_and_then_makes_no_connection_wait_less(engine: ScriptedEngine) -> None:
    async with serving(engine, SERVE_MAX_CONNECTIONS="2") as port:
        connections: set[Any] = port.server.server_state.connections
        dripping, silent = await port.connect(), await port.connect()
        await eventually(lambda: len(connections) == 2)
        dripping.send(b"G")
        await eventually(lambda: any(one.conn.trailing_data[0] == b"G" for one in connections))
        assert (await port.ask(PING)).startswith(b"HTTP/1.1 200")
        assert await dripping.all() == b""
        silent.send(PING)
        assert (await silent.all()).startswith(b"HTTP/1.1 200")


async def test_the_kernel_waits_no_longer_than_the_server(engine: ScriptedEngine) -> None:
    async with serving(engine, SERVE_TIMEOUT_S="7") as port:
        await port.connect()
        await eventually(lambda: len(port.server.server_state.connections) == 1)
        (connection,) = port.server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_000


CHUNKED = request(headers="transfer-encoding: chunked\r\n", length=0)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /ping HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"GET /ping HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n\r\n",  # no host
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        request(BODY, headers="content-length: 3\r\n"),
        *(CHUNKED + chunk for chunk in (b"zz\r\n", b"1" * 100_000)),
    ],
)
async def test_what_is_no_request_is_refused(engine: ScriptedEngine, sent: bytes) -> None:
    async with serving(engine, **SHORT) as port:
        answer = await port.ask(sent)
        assert answer[9:12] in {b"", b"400", b"405"}
        assert b"Traceback" not in answer
        assert await until_answered(port, PING)
    assert engine.asked == []
