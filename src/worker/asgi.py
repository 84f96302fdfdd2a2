"""Calls of an ASGI app in this process, with a streamed answer and a client's disconnect."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Scope

# asyncio keeps only weak references to tasks, and a disconnected call outlives its caller.
_running: set[asyncio.Future[None]] = set()


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; ``path`` has no query string."""

    method: str
    path: str
    body: bytes = b""
    request_id: str = ""

    @property
    def scope(self) -> Scope:
        headers = [
            (b"host", b"worker"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body)).encode()),
            (b"x-request-id", self.request_id.encode()),
        ]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": ("worker", 80),
            "state": {},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """The status of an answer and its media type, without parameters."""

    status: int
    media_type: str


class _Connection:
    """The app's end of a call: what it receives, and what it sends."""

    def __init__(self, body: bytes) -> None:
        self._to_app: list[Message] = [
            {"type": "http.request", "body": body, "more_body": False},
        ]
        self.parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()
        self.disconnected = asyncio.Event()

    async def receive(self) -> Message:
        if self._to_app:
            return self._to_app.pop()
        # vLLM waits here for the client to disconnect: nothing else may come.
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.parts.put_nowait(_head(message))
        elif message.get("body"):
            self.parts.put_nowait(bytes(message["body"]))

    def end(self, task: asyncio.Future[None]) -> None:
        _running.discard(task)
        self.parts.put_nowait(None)
        # Retrieved, so that asyncio does not log a failure after the disconnect.
        if not task.cancelled():
            task.exception()


async def call(
    app: ASGIApp, request: Request, state: dict[str, Any] | None = None
) -> AsyncGenerator[Head | bytes, None]:
    """Yield the head of the app's answer, then its body, part by part.

    Closing the generator disconnects. The app runs in a task of its own, which is never cancelled:
    vLLM does not abort an unstreamed request whose task is cancelled.

    Args:
        app: runs on this loop.
        request: can be called again.
        state: where the app keeps what it notes of this call, for a caller who reads it.

    Raises:
        Exception: what the app raised.
    """
    connection = _Connection(request.body)
    scope = request.scope if state is None else {**request.scope, "state": state}
    task = asyncio.ensure_future(app(scope, connection.receive, connection.send))
    _running.add(task)
    task.add_done_callback(connection.end)
    try:
        while (part := await connection.parts.get()) is not None:
            yield part
        await task
    finally:
        connection.disconnected.set()


def _head(message: Message) -> Head:
    headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
    media_type = headers.get("content-type", "").split(";", 1)[0].strip()
    return Head(status=message["status"], media_type=media_type)
