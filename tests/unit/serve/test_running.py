"""What stands around the app: other origins, the port for pings, and a start that failed."""

import httpx
import pytest
from pydantic import SecretStr
from support.engine.scripted import ScriptedEngine, settings
from support.served import error_of

from worker.errors import StartFailed
from worker.serve.refusal import Refusal
from worker.serve.running import HealthPort, refusing, with_cors
from worker.serve.service import Service

WHY = StartFailed("MODEL_NAME is not set")
PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def calling(app: object, url: str = "http://worker") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url)  # type: ignore[arg-type]  # any app


@pytest.mark.parametrize("origins", [(PAGE,), ("*",), ("https://a.example.com", PAGE)])
async def test_pages_of_named_origins_are_answered(origins: tuple[str, ...]) -> None:
    with ScriptedEngine() as engine:
        service = Service(engine.engines, settings(SERVE_API_KEY="sk-right"))
        async with calling(with_cors(service, origins)) as http:
            # Browsers ask without a key.
            allowed = await http.options("/v1/chat/completions", headers=PREFLIGHT)
            assert allowed.status_code == 200
            assert allowed.headers["access-control-allow-origin"] in (PAGE, "*")
            assert "authorization" in allowed.headers["access-control-allow-headers"]
            refused = await http.get("/v1/models", headers={"origin": PAGE})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] in (PAGE, "*")


@pytest.mark.parametrize("origins", [(), ("https://other.example.com",)])
async def test_pages_of_other_origins_are_not(origins: tuple[str, ...]) -> None:
    with ScriptedEngine() as engine:
        service = Service(engine.engines, settings())
        async with calling(with_cors(service, origins)) as http:
            asked = await http.options("/v1/chat/completions", headers=PREFLIGHT)
            assert asked.status_code >= 400
            assert "access-control-allow-origin" not in asked.headers


async def test_the_health_port_has_pings_alone() -> None:
    with ScriptedEngine() as engine:
        app = HealthPort(Service(engine.engines, settings()), 8080)
        async with calling(app, "http://worker:8080") as http:
            assert (await http.get("/ping")).status_code == 200
            assert (await http.get("/v1/models")).status_code == 404
        async with calling(app, "http://worker:80") as http:
            assert (await http.get("/ping")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/batches", "/ping", "/health", "/x"])
async def test_every_request_is_told_why_the_worker_does_not_start(path: str) -> None:
    async with calling(Refusal(WHY, None)) as http:
        answer = await http.post(path, json={})
    assert answer.status_code == 503
    # OpenAI's client would send it again.
    assert answer.headers["x-should-retry"] == "false"
    error = error_of(answer)
    assert (error["message"], error["retryable"]) == (WHY.message, False)


async def test_without_the_key_nobody_learns_why() -> None:
    async with calling(Refusal(WHY, SecretStr("sk-right"))) as http:
        assert (await http.get("/v1/models")).status_code == 401
        ping = await http.get("/ping")
        assert (ping.status_code, ping.content) == (503, b"")
        told = await http.get("/v1/models", headers={"authorization": "Bearer sk-right"})
        assert error_of(told)["message"] == WHY.message


@pytest.mark.parametrize("origins", ['["https://x"', "{", "[" + PAGE])
async def test_origins_that_can_not_be_read_keep_nobody_from_the_reason(origins: str) -> None:
    app = refusing(WHY, {"ALLOWED_ORIGINS": origins}, "0.0.0.0", 80).config.app
    async with calling(app) as http:
        answer = await http.get("/v1/models", headers={"origin": PAGE})
    assert error_of(answer)["message"] == WHY.message
    assert "access-control-allow-origin" not in answer.headers


async def test_a_page_of_a_named_origin_may_read_why() -> None:
    app = refusing(WHY, {"ALLOWED_ORIGINS": f'["{PAGE}"]'}, "127.0.0.1", 80).config.app
    async with calling(app) as http:
        answer = await http.get("/v1/models", headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE


async def test_the_health_port_tells_nobody_why() -> None:
    app = refusing(WHY, {}, "127.0.0.1", 80, 8080).config.app
    async with calling(app, "http://worker:8080") as http:
        assert (await http.get("/v1/models")).status_code == 404
        assert (await http.get("/ping")).status_code == 503
    async with calling(app, "http://worker:80") as http:
        assert (await http.get("/v1/models")).status_code == 503
