"""The app of --serve, called without a socket."""

from typing import Any

import httpx

from support.engine.scripted import ScriptedEngine, settings
from worker.serve.service import Service

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
KEY = {"SERVE_API_KEY": "sk-right"}


def client_of(app: Any, url: str = "http://worker") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url)


class Served(httpx.AsyncClient):
    """A client of the app in front of an engine."""

    def __init__(self, engine: ScriptedEngine, **environ: str) -> None:
        self.engine = engine
        transport = httpx.ASGITransport(Service(engine.engines, settings(**environ)))
        super().__init__(transport=transport, base_url="http://worker")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["request_id"] == response.headers["x-request-id"]
    return error


async def sent_to(
    engine: ScriptedEngine, path: str, receive: Any, *headers: tuple[str, str], **environ: str
) -> list[Any]:
    """Return what a POST is answered whose body comes from ``receive``, as with uvicorn."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw}
    await Service(engine.engines, settings(**environ))(scope, receive, send)
    return sent


def leaving_after(*parts: bytes) -> Any:
    """Return how the parts of a body are received of a client that leaves before its end."""
    left = iter([{"type": "http.request", "body": part, "more_body": True} for part in parts])

    async def receive() -> dict[str, Any]:
        return next(left, {"type": "http.disconnect"})

    return receive
