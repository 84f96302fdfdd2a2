"""The app of --serve, called without a socket."""

from typing import Any

import httpx

from support.engine.scripted import ScriptedEngine, settings
from worker.serve.service import WorkerApp

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
KEY = {"SERVE_API_KEY": "sk-right"}


def client_of(app: Any, url: str = "http://worker") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url)


class ServeClient(httpx.AsyncClient):
    """A client of the app of --serve with a scripted engine."""

    def __init__(self, engine: ScriptedEngine, **environ: str) -> None:
        self.engine = engine
        transport = httpx.ASGITransport(WorkerApp(engine.engines, settings(**environ)))
        super().__init__(transport=transport, base_url="http://worker")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["request_id"] == response.headers["x-request-id"]
    return error


async def post_streamed_body(
    engine: ScriptedEngine, path: str, receive: Any, *headers: tuple[str, str], **environ: str
) -> list[Any]:
    """Send a POST whose body comes from ``receive``, as with uvicorn; return the app's messages."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw}
    await WorkerApp(engine.engines, settings(**environ))(scope, receive, send)
    return messages


def disconnect_after(*parts: bytes) -> Any:
    """Return a ``receive`` for a client that sends parts of a body and disconnects."""
    messages = iter([{"type": "http.request", "body": part, "more_body": True} for part in parts])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    return receive
