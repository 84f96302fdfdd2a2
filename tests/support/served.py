"""The app of --serve, called without a socket."""

from typing import Any

import httpx

from support.engine.scripted import ScriptedEngine, settings
from worker.serve.service import Service


def client(engine: ScriptedEngine, **environ: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Service(engine.engines, settings(**environ)))
    return httpx.AsyncClient(transport=transport, base_url="http://worker")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["request_id"] == response.headers["x-request-id"]
    return error
