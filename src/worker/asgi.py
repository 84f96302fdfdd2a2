"""Calls an ASGI app in process, streaming the answer, and disconnects as a client would."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


# asyncio keeps only weak references to tasks, and a disconnected call outlives its caller.
_running: set[asyncio.Future[None]] = set()


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request to an app in this process; ``path`` carries no query string."""

    method: str
    path: str
    body: bytes = b""
    request_id: str = ""

    @property
    def scope(self) -> Message:
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
    """What comes before the body: the status and the media type, without parameters."""

    status: int
    media_type: str


class _Connection:
    """The two ends of one call: what the app receives, and what it sends."""

    def __init__(self, body: bytes) -> None:
        self._to_app: list[Message] = [
            {"type": "http.request", "body": body, "more_body": False},
        ]
        self.parts: asyncio.Queue[Head | bytes | None] = asyncio.Queue()
        self.disconnected = asyncio.Event()

    async def receive(self) -> Message:
        if self._to_app:
            return self._to_app.pop()
        # vLLM listens here for a client that leaves: nothing may come until one does.
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
        # Looked at here so that asyncio reports no failure that comes after the disconnect.
        if not task.cancelled():
            task.exception()


async def call(app: App, request: Request) -> AsyncGenerator[Head | bytes, None]:
    """Yield the head of the app's answer, then its body, part by part.

    Closing the generator disconnects: the app runs in a task of its own that is told, never
    cancelled, because vLLM forgets to abort an unstreamed request whose task is cancelled.

    Raises:
        Exception: what the app let escape.
    """
    connection = _Connection(request.body)
    task = asyncio.ensure_future(app(request.scope, connection.receive, connection.send))
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
