"""Minimal clients of vLLM's server, which send the callers' requests."""

import asyncio
from collections.abc import Sequence
from typing import cast

import httptools

from gpu_load.callers import Callers
from gpu_load.loads import Order

REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class Clients:
    """Send each request on a free connection, or on a new one."""

    callers: Callers

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[ServerConnection] = []
        self._all: list[ServerConnection] = []
        self._connecting: set[asyncio.Task[None]] = set()

    def content(self, order: Order) -> str:
        return order.body

    def send(self, number: int, body: bytes) -> None:
        if self._free:
            self._free.pop().request(number, body)
        else:
            task = asyncio.create_task(self._connect_and_request(number, body))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def stop(self, _: Sequence[int]) -> None:
        """Close all connections, whose requests vLLM then cancels."""
        for connection in self._all:
            connection.close()

    def end(self, connection: "ServerConnection", number: int, error: str) -> None:
        self._free.append(connection)
        self.callers.end(number, error)

    async def _connect_and_request(self, number: int, body: bytes) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ServerConnection(self), "127.0.0.1", self._port
        )
        self._all.append(connection)
        connection.request(number, body)


class ServerConnection(asyncio.Protocol):
    """A connection to the server, on which each request follows the answer to the last one."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the class.
        self._transport = cast(asyncio.Transport, transport)

    def request(self, number: int, body: bytes) -> None:
        self._number, self._words, self._newlines = number, 0, 0
        self._is_complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(REQUEST % (len(body), body))

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data = b""
        self._parser.feed_data(data)
        # In addition to the words', each event has a space. It ends with two newlines, which may
        # arrive separately.
        events, self._newlines = divmod(self._newlines + self._data.count(b"\n"), 2)
        self._clients.callers.receive(self._number, self._data.count(b" ") - events, self._data)
        if self._is_complete:
            is_error = self._parser.get_status_code() != 200
            self._clients.end(self, self._number, self._data.decode() if is_error else "")

    def on_body(self, body: bytes) -> None:
        self._data += body

    def on_message_complete(self) -> None:
        self._is_complete = True
