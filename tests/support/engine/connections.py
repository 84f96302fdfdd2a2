"""The server in front of a scripted engine, and raw connections to it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from support.engine.scripted import CHAT, ScriptedEngine, settings
from support.processes.background import HUNG_S, eventually
from worker.serve.running import server


@dataclass
class Client:
    """One connection; its kernel holds little of what it does not read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def all(self) -> bytes:
        """Return what comes until the server ends the connection."""
        received = b""
        async with asyncio.timeout(HUNG_S):
            with contextlib.suppress(ConnectionError):
                while part := await self.reader.read(65_536):
                    received += part
        return received

    async def head(self) -> bytes:
        async with asyncio.timeout(HUNG_S):
            return await self.reader.readuntil(b"\r\n\r\n")


class Port:
    """A server's port, and the connections to it; ``health`` is its port for /ping alone."""

    def __init__(self, running: uvicorn.Server, number: int, health: "Port | None" = None) -> None:
        self.server = running
        self.health = health or self
        self._address = ("127.0.0.1", number)
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{host}:{port}"

    async def connect(self, *, limit: int = 65_536) -> Client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self._address)
        client = Client(*await asyncio.open_connection(sock=connection, limit=limit))
        self._clients.append(client)
        return client

    async def ask(self, data: bytes) -> bytes:
        client = await self.connect()
        client.send(data)
        return await client.all()

    def close(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(
    engine: ScriptedEngine, host: str = "127.0.0.1", **environ: str
) -> AsyncIterator[Port]:
    listening = [socket.create_server((host, 0)) for _ in range(2)]
    numbers = [one.getsockname()[1] for one in listening]
    running = server(engine.engines, settings(**environ), host, *numbers)
    task = asyncio.create_task(running.serve(sockets=listening))
    await eventually(lambda: running.started)
    health = Port(running, numbers[1])
    port = Port(running, numbers[0], health)
    try:
        yield port
    finally:
        port.close()
        health.close()
        running.should_exit = running.force_exit = True
        await task


def request(
    body: bytes = b"", method: str = "POST", path: str = CHAT, headers: str = "", **more: Any
) -> bytes:
    length = more.get("length", len(body))
    head = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {length}\r\n\r\n".encode() + body
