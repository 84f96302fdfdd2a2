"""Calls an ASGI app in this process; supports streamed responses and client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Scope

# asyncio stores only weak references to tasks, and a disconnected call outlives its caller.
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
class ResponseHead:
    """The status and the media type of a response, without the media type's parameters."""

    status: int
    media_type: str


class _AppCall:
    """The ``receive`` and ``send`` callables of one call of the app."""

    def __init__(self, body: bytes, take_part: Callable[[bytes, bool], bool]) -> None:
        self._take_part = take_part
        self._requests: list[Message] = [
            {"type": "http.request", "body": body, "more_body": False},
        ]
        self.parts: asyncio.Queue[ResponseHead | bytes | None] = asyncio.Queue()
        self.disconnected = asyncio.Event()

    async def receive(self) -> Message:
        if self._requests:
            return self._requests.pop()
        # vLLM waits here for the client to disconnect; any other message would be an error.
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {key.decode().lower(): value.decode() for key, value in message["headers"]}
            media_type = headers.get("content-type", "").split(";", 1)[0].strip()
            self.parts.put_nowait(ResponseHead(message["status"], media_type))
            return
        part = bytes(message.get("body", b""))
        # While an earlier part waits, this one waits, too.
        if part and not self._take_part(part, self.parts.empty()):
            self.parts.put_nowait(part)

    def on_task_done(self, task: asyncio.Future[None]) -> None:
        _running.discard(task)
        self.parts.put_nowait(None)
        # Retrieve the exception, or asyncio logs failures after a disconnect.
        if not task.cancelled():
            task.exception()


def take_no_part(_: bytes, __: bool) -> bool:
    return False


async def call_app(
    app: ASGIApp,
    request: Request,
    state: dict[str, Any] | None = None,
    take_part: Callable[[bytes, bool], bool] = take_no_part,
) -> AsyncGenerator[ResponseHead | bytes, None]:
    """Yield the head of the app's response, then the parts of its body.

    Closing the generator disconnects the client. The app runs in its own task, which is never
    cancelled: vLLM does not abort an unstreamed request when its task is cancelled.

    In ``state``, the app stores data about this call, for the caller to read. ``take_part`` is
    called by the app with each part of the body, and with whether all earlier parts have been taken
    or yielded. Only then it may take the part, so that it is not yielded, which saves the switch to
    the caller's task. It must not raise an exception.
    """
    app_call = _AppCall(request.body, take_part)
    scope = request.scope if state is None else {**request.scope, "state": state}
    task = asyncio.ensure_future(app(scope, app_call.receive, app_call.send))
    _running.add(task)
    task.add_done_callback(app_call.on_task_done)
    try:
        while (part := await app_call.parts.get()) is not None:
            yield part
        await task
    finally:
        app_call.disconnected.set()
