"""The HTTP server with a scripted engine, and raw connections to it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from support.engine.scripted import CHAT, ScriptedEngine, settings
from support.processes.background import HUNG_S, poll_until
from worker.serve.http_server import make_server


@dataclass
class Connection:
    """One connection to a server; the kernel buffers little of the unread response."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_all(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        received = b""
        async with asyncio.timeout(HUNG_S):
            with contextlib.suppress(ConnectionError):
                while part := await self.reader.read(65_536):
                    received += part
        return received

    async def read_head(self) -> bytes:
        async with asyncio.timeout(HUNG_S):
            return await self.reader.readuntil(b"\r\n\r\n")


class ServerPort:
    """A server's port and the connections to it; ``health`` is its second port, for /ping only."""

    def __init__(
        self, running: uvicorn.Server, number: int, health: "ServerPort | None" = None
    ) -> None:
        self.server = running
        self.health = health or self
        self._address = ("127.0.0.1", number)
        self._clients: list[Connection] = []

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{host}:{port}"

    async def connect(self, *, limit: int = 65_536) -> Connection:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self._address)
        client = Connection(*await asyncio.open_connection(sock=connection, limit=limit))
        self._clients.append(client)
        return client

    async def exchange(self, data: bytes) -> bytes:
        client = await self.connect()
        client.send(data)
        return await client.read_all()

    def close(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()


@contextlib.asynccontextmanager
async def serve_http(
    engine: ScriptedEngine, host: str = "127.0.0.1", console: bool = False, /, **environ: str
) -> AsyncIterator[ServerPort]:
    listeners = [socket.create_server((host, 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    running = make_server(engine.engines, settings(**environ), host, *ports, console=console)
    task = asyncio.create_task(running.serve(sockets=listeners))
    await poll_until(lambda: running.started)
    health = ServerPort(running, ports[1])
    port = ServerPort(running, ports[0], health)
    try:
        yield port
    finally:
        port.close()
        health.close()
        running.should_exit = running.force_exit = True
        await task


def http_request(
    body: bytes = b"", method: str = "POST", path: str = CHAT, headers: str = "", **more: Any
) -> bytes:
    length = more.get("length", len(body))
    head = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {length}\r\n\r\n".encode() + body
