"""What stands around the app: other origins, the port for pings, and a start that failed."""

import httpx
import pytest
from pydantic import SecretStr
from support.engine.scripted import ScriptedEngine, settings
from support.served import KEY, client_of, error_of

from worker.errors import StartFailed
from worker.serve.refusal import Refusal
from worker.serve.running import HealthPort, refusing, server, with_cors
from worker.serve.service import Service

WHY = StartFailed("MODEL_NAME is not set")
PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
ALLOWED = "access-control-allow-origin"


def refusal(url: str = "http://worker:80", **environ: str) -> httpx.AsyncClient:
    """Return a client of what stands in place of a worker that does not start."""
    return client_of(refusing(WHY, environ, "0.0.0.0", 80, 8080).config.app, url)


@pytest.mark.parametrize("origins", [("*",), ("https://a.example.com", PAGE)])
async def test_named_origins_are_answered(engine: ScriptedEngine, origins: tuple[str, ...]) -> None:
    service = Service(engine.engines, settings(**KEY))
    async with client_of(with_cors(service, origins)) as http_client:
        # Browsers ask without a key.
        asked = await http_client.options("/v1/chat/completions", headers=PREFLIGHT)
        refused = await http_client.get("/v1/models", headers={"origin": PAGE})
    assert (asked.status_code, refused.status_code) == (200, 401)
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert {one.headers[ALLOWED] for one in (asked, refused)} <= {PAGE, "*"}


@pytest.mark.parametrize(
    ("url", "statuses"), [("http://worker:8080", [200, 404]), ("http://worker:80", [200, 200])]
)
async def test_the_health_port_has_pings_alone(
    engine: ScriptedEngine, url: str, statuses: list[int]
) -> None:
    app = HealthPort(Service(engine.engines, settings()), 8080)
    async with client_of(app, url) as http_client:
        found = [(await http_client.get(path)).status_code for path in ("/ping", "/v1/models")]
    assert found == statuses


@pytest.mark.parametrize(
    ("host", "environ", "warns"),
    [("127.0.0.1", {}, False), ("0.0.0.0", {}, True), ("0.0.0.0", KEY, False)],
)
def test_listening_beyond_this_machine_without_a_key_warns(
    host: str, environ: dict[str, str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server(ScriptedEngine().engines, settings(**environ), host, 8000)
    assert ("SERVE_API_KEY" in caplog.text) is warns


# A worker that does not start:


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/ping", "/health", "/x"])
async def test_every_answer_says_why_the_worker_does_not_start(path: str) -> None:
    async with refusal() as http_client:
        answer = await http_client.post(path, json={})
    assert answer.status_code == 503
    # OpenAI's client would send it again.
    assert answer.headers["x-should-retry"] == "false"
    error = error_of(answer)
    assert (error["message"], error["retryable"]) == (WHY.message, False)


async def test_without_the_key_and_on_the_health_port_nobody_learns_why() -> None:
    async with refusal("http://worker:8080") as health_port:
        assert (await health_port.get("/v1/models")).status_code == 404
        assert (await health_port.get("/ping")).status_code == 503
    async with client_of(Refusal(WHY, SecretStr("sk-right"))) as http_client:
        assert (await http_client.get("/v1/models")).status_code == 401
        ping = await http_client.get("/ping")
        assert (ping.status_code, ping.content) == (503, b"")
        headers = {"authorization": "Bearer sk-right"}
        told = await http_client.get("/v1/models", headers=headers)
    assert error_of(told)["message"] == WHY.message


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [(f'["{PAGE}"]', PAGE), ('["https://x"', None), ("{", None), (f"[{PAGE}", None)],
)
async def test_a_page_of_a_named_origin_may_read_why(origins: str, allowed: str | None) -> None:
    async with refusal(ALLOWED_ORIGINS=origins) as http_client:
        answer = await http_client.get("/v1/models", headers={"origin": PAGE})
    assert error_of(answer)["message"] == WHY.message
    assert answer.headers.get(ALLOWED) == allowed
