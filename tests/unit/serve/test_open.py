"""Who is answered: by a key, by its name, by its origin, and where the worker does not start."""

from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from support.engine.connections import serving
from support.engine.scripted import CHAT, ScriptedEngine, settings
from support.processes.background import HUNG_S
from support.served import HELLO, KEY, Served, client_of, error_of
from support.tables.web_pages import ANSWERED, HERE, status

from worker.errors import StartFailed
from worker.serve.running import HealthPort, refusing, server, with_cors
from worker.serve.service import Refusal, Service


@pytest.fixture
def environ() -> dict[str, str]:
    return KEY


async def test_ping_needs_no_key_but_a_living_engine(http_client: Served) -> None:
    assert (await http_client.get("/ping")).status_code == 200
    assert (await http_client.get("/health")).status_code == 200
    http_client.engine.mark_dead()
    assert (await http_client.get("/ping")).status_code == 503


RIGHT = {"x-api-key": "sk-right"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *((headers, 200) for headers in (RIGHT, {"authorization": "bearer sk-right"})),
        ({"authorization": "Basic c2stcmlnaHQ6"}, 200),
        ({"authorization": "Basic c2std3Jvbmc6", **RIGHT}, 200),
        *(({"authorization": f"{kind}sk-right"}, 401) for kind in ("", "Bearer not-", "Basic ")),
        *(({"authorization": f"Basic {key}"}, 401) for key in ("c2std3Jvbmc6", "é", "c2s")),
        *(({"x-api-key": "é"}, 401), ({}, 401)),
    ],
)
async def test_the_key_is_found_wherever_it_is_and_no_other_is_taken(
    http_client: Served, headers: dict[str, str], status: int
) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    response = await http_client.post(CHAT, json=HELLO, headers=sent)
    assert (response.status_code, len(http_client.engine.asked)) == (status, status == 200)
    if status == 401:
        assert error_of(response)["type"] == "UnauthorizedError"
        assert "sk-right" not in response.text


WHY = StartFailed("MODEL_NAME is not set")
PAGE, OTHER = "https://chat.example.com", "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
FILES = "/v1/files"
ALLOWED = "access-control-allow-origin"
# What a browser sends for a page of another site: a post has its origin, an image's GET has none.
CROSS = {"Host": HERE, "Sec-Fetch-Site": "cross-site"}
REBOUND = {"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"}


def refusal(url: str = "http://worker:80", **environ: str) -> httpx.AsyncClient:
    """Return a client of what stands in place of a worker that does not start."""
    return client_of(refusing(WHY, environ, "0.0.0.0", 80, 8080).config.app, url)


@pytest.mark.parametrize(
    ("origins", "allowed"), [(("*",), "*"), (("https://a.example.com", PAGE), PAGE)]
)
async def test_named_origins_are_answered(
    engine: ScriptedEngine, origins: tuple[str, ...], allowed: str
) -> None:
    service = Service(engine.engines, settings(**KEY))
    async with client_of(with_cors(service, origins)) as http_client:
        # Browsers ask without a key.
        asked = await http_client.options(CHAT, headers=PREFLIGHT | {"origin": PAGE})
        refused = await http_client.get("/v1/models", headers={"origin": PAGE})
    assert (asked.status_code, refused.status_code) == (200, 401)
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert [one.headers[ALLOWED] for one in (asked, refused)] == [allowed] * 2


async def test_the_health_port_has_pings_alone(engine: ScriptedEngine) -> None:
    app = HealthPort(Service(engine.engines, settings()), 8080)
    for port, of_models in ((8080, 404), (80, 200)):
        async with client_of(app, f"http://worker:{port}") as http_client:
            assert (await http_client.get("/ping")).status_code == 200
            assert (await http_client.get("/v1/models")).status_code == of_models


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


async def test_every_answer_says_why_the_worker_does_not_start() -> None:
    async with refusal() as http_client:
        for path in (CHAT, "/ping", "/health", "/x"):
            answer = await http_client.post(path, json={})
            # OpenAI's client would send it again.
            assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
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


# Pages in a browser on this machine reach no worker that asks for no key; its programs do.


@pytest.mark.parametrize("path", ["/v1/models", "/ping"])
async def test_programs_are_answered_and_pages_are_not(engine: ScriptedEngine, path: str) -> None:
    async with serving(engine) as port:
        found = [(headers, await status(port.url, headers, path)) for headers, _ in ANSWERED]
    assert found == [(headers, 200 if answered else 403) for headers, answered in ANSWERED]


def below(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


async def test_a_page_writes_and_reads_no_file(engine: ScriptedEngine, tmp_path: Path) -> None:
    async with (
        serving(engine, FILES_PATH=str(tmp_path)) as port,
        httpx.AsyncClient(base_url=port.url, timeout=HUNG_S) as http_client,
    ):
        file = {"file": ("a.jsonl", b"mine")}
        mine = f"{FILES}/{(await http_client.post(FILES, files=file)).json()['id']}"
        before = below(tmp_path)
        form = await http_client.post(FILES, files=file, headers=CROSS | {"Origin": OTHER})
        posted = await http_client.post(FILES, json={"content": "x"}, headers=REBOUND)
        read = await http_client.get(f"{mine}/content", headers=REBOUND)
        deleted = await http_client.delete(mine, headers=REBOUND)
        assert (await http_client.get(f"{mine}/content")).content == b"mine"
    assert [one.status_code for one in (form, posted, read, deleted)] == [403] * 4
    assert "ALLOWED_ORIGINS" in error_of(form)["message"]
    assert "SERVE_API_KEY" in error_of(read)["message"]
    assert below(tmp_path) == before


@pytest.mark.parametrize(
    ("host", "reads"), [("evil.example", False), ("evil.example:8080", False), ("127.0.0.1", True)]
)
async def test_a_page_does_not_read_why_the_worker_does_not_start(host: str, reads: bool) -> None:
    async with client_of(refusing(WHY, {}, "127.0.0.1", 80, 8080).config.app) as http_client:
        answer = await http_client.get(f"http://{host}/ping")
    assert (answer.status_code, "MODEL_NAME" in answer.text) == (503 if reads else 403, reads)


async def test_pages_of_an_allowed_origin_alone_are_answered(engine: ScriptedEngine) -> None:
    async with (
        serving(engine, ALLOWED_ORIGINS=PAGE) as port,
        httpx.AsyncClient(base_url=f"{port.url}/v1", timeout=HUNG_S) as http_client,
    ):
        for origin, allowed, statuses in ((PAGE, PAGE, (200, 200)), (OTHER, None, (400, 403))):
            sent = CROSS | {"Origin": origin}
            asked = await http_client.options("/models", headers=sent | PREFLIGHT)
            got = await http_client.get("/models", headers=sent)
            assert (asked.status_code, got.status_code) == statuses
            for response in (asked, got):
                assert response.headers.get(ALLOWED) == allowed
        # Whose image it is, a browser does not say.
        assert (await http_client.get("/models", headers=CROSS)).status_code == 403
        # By a foreign name it is another server for the browser, and the page another page.
        rebound = REBOUND | {"Origin": PAGE}
        assert (await http_client.get("/models", headers=rebound)).status_code == 403
        assert (await http_client.get("/models")).status_code == 200


@pytest.mark.parametrize(
    ("host", "environ"),
    # A container's, in a pod or behind the platform's load balancer; whoever has the key.
    [("0.0.0.0", {}), ("127.0.0.1", KEY), ("127.0.0.1", {"ALLOWED_ORIGINS": "*"})],
)
async def test_what_is_open_to_others_by_its_settings_has_any_name(
    engine: ScriptedEngine, host: str, environ: dict[str, str]
) -> None:
    key = {"Authorization": "Bearer sk-right"}
    async with serving(engine, host, **environ) as port:
        for headers in (REBOUND, CROSS, CROSS | {"Origin": OTHER}):
            assert await status(port.url, headers | key, "/v1/models") == 200
