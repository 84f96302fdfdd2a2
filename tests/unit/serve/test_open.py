"""Access to the server: keys, host names, origins, and a worker that doesn't start."""

from pathlib import Path

import httpx
import pytest
from support.console import HERE, REQUESTS, check_headers, read_values, request_status
from support.engine.connections import serve_http
from support.engine.scripted import CHAT, ScriptedEngine, settings
from support.processes.background import HUNG_S
from support.serve_client import HELLO, KEY, ServeClient, client_of, error_of

from worker.errors import StartFailed
from worker.serve.http_server import make_refusing_server, make_server


@pytest.fixture
def environ() -> dict[str, str]:
    return KEY


def client_of_server(
    engine: ScriptedEngine, url: str = "http://worker:80", **environ: str
) -> httpx.AsyncClient:
    """Return a client of a server with a health port, 8080, in a container."""
    server = make_server(engine.engines, settings(**environ), "0.0.0.0", 80, 8080)
    return client_of(server.config.app, url)


async def test_ping_needs_a_running_engine_and_no_key(http_client: ServeClient) -> None:
    assert (await http_client.get("/ping")).status_code == 200
    assert (await http_client.get("/health")).status_code == 200
    http_client.engine.mark_dead()
    assert (await http_client.get("/ping")).status_code == 503


RIGHT_KEY = {"x-api-key": "sk-right"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *((headers, 200) for headers in (RIGHT_KEY, {"authorization": "bearer sk-right"})),
        ({"authorization": "Basic c2stcmlnaHQ6"}, 200),
        ({"authorization": "Basic c2std3Jvbmc6", **RIGHT_KEY}, 200),
        *(({"authorization": f"{kind}sk-right"}, 401) for kind in ("", "Bearer not-", "Basic ")),
        *(({"authorization": f"Basic {key}"}, 401) for key in ("c2std3Jvbmc6", "é", "c2s")),
        *(({"x-api-key": "é"}, 401), ({}, 401)),
    ],
)
async def test_the_right_key_is_accepted_in_every_header_and_other_keys_are_refused(
    http_client: ServeClient, headers: dict[str, str], status: int
) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    response = await http_client.post(CHAT, json=HELLO, headers=sent)
    assert (response.status_code, len(http_client.engine.requests)) == (status, status == 200)
    if status == 401:
        assert error_of(response)["type"] == "UnauthorizedError"
        assert "sk-right" not in response.text


async def test_the_health_port_answers_only_pings(engine: ScriptedEngine) -> None:
    for port, models_status in ((8080, 404), (80, 200)):
        async with client_of_server(engine, f"http://worker:{port}") as http_client:
            assert (await http_client.get("/ping")).status_code == 200
            assert (await http_client.get("/v1/models")).status_code == models_status


@pytest.mark.parametrize(
    ("host", "environ", "warns"),
    [("127.0.0.1", {}, False), ("0.0.0.0", {}, True), ("0.0.0.0", KEY, False)],
)
def test_listening_on_the_network_without_a_key_logs_a_warning(
    host: str, environ: dict[str, str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make_server(ScriptedEngine().engines, settings(**environ), host, 8000)
    assert ("SERVE_API_KEY" in caplog.text) is warns


@pytest.mark.parametrize(("environ", "value"), [({}, ""), (KEY, "needed")])
async def test_the_console_needs_its_flag_and_no_key_but_its_requests_do(
    engine: ScriptedEngine, environ: dict[str, str], value: str
) -> None:
    async with (
        serve_http(engine, "127.0.0.1", True, **environ) as port,
        httpx.AsyncClient(base_url=port.url, timeout=HUNG_S) as http_client,
    ):
        response = await http_client.get("/")
        models = await http_client.get("/v1/models")
        assert (await http_client.post("/")).status_code == (401 if value else 404)
        assert (await http_client.get(f"{port.health.url}/")).status_code == 404
    check_headers(response.headers, response.text)
    assert read_values(response.text) == {"server": "worker", "endpoint": "", "key": value}
    assert models.status_code == (401 if value else 200)
    async with client_of_server(engine, **environ) as without_console:
        assert (await without_console.get("/")).status_code == (401 if value else 404)


# Programs on this machine reach the worker, but pages in a browser don't, also if there is a key:


PAGE, OTHER_PAGE = "https://chat.example.com", "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
FILES = "/v1/files"
ALLOWED = "access-control-allow-origin"
# Headers that a browser sends for a page of another site: a POST has the page's origin, the GET of
# an image has none.
CROSS_SITE = {"Host": HERE, "Sec-Fetch-Site": "cross-site"}
REBOUND = {"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("environ", [{}, KEY])
async def test_programs_are_answered_and_pages_are_refused(
    engine: ScriptedEngine, environ: dict[str, str]
) -> None:
    async with serve_http(engine, "127.0.0.1", True, **environ) as port:
        for path in ("/v1/models", "/ping", "/"):
            for headers, is_answered in REQUESTS:
                status = await request_status(port.url, headers | RIGHT_KEY, path)
                assert (path, headers, status) == (path, headers, 200 if is_answered else 403)


def list_files(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


async def test_a_page_can_neither_read_nor_write_files(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with (
        serve_http(engine, FILES_PATH=str(tmp_path)) as port,
        httpx.AsyncClient(base_url=port.url, timeout=HUNG_S) as http_client,
    ):
        file = {"file": ("a.jsonl", b"mine")}
        own_file = f"{FILES}/{(await http_client.post(FILES, files=file)).json()['id']}"
        before = list_files(tmp_path)
        form = await http_client.post(
            FILES, files=file, headers=CROSS_SITE | {"Origin": OTHER_PAGE}
        )
        posted = await http_client.post(FILES, json={"content": "x"}, headers=REBOUND)
        read = await http_client.get(f"{own_file}/content", headers=REBOUND)
        deleted = await http_client.delete(own_file, headers=REBOUND)
        assert (await http_client.get(f"{own_file}/content")).content == b"mine"
    assert [one.status_code for one in (form, posted, read, deleted)] == [403] * 4
    assert "ALLOWED_ORIGINS" in error_of(form)["message"]
    assert "SERVE_API_KEY" in error_of(read)["message"]
    assert list_files(tmp_path) == before


@pytest.mark.parametrize(
    ("origins", "allowed"), [("*", "*"), (f"https://a.example.com,{PAGE}", PAGE)]
)
async def test_allowed_origins_are_answered(
    engine: ScriptedEngine, origins: str, allowed: str
) -> None:
    async with client_of_server(engine, **KEY, ALLOWED_ORIGINS=origins) as http_client:
        # Browsers send preflight requests without a key.
        preflight = await http_client.options(CHAT, headers=PREFLIGHT | {"origin": PAGE})
        answer = await http_client.get("/v1/models", headers={"origin": PAGE})
    assert (preflight.status_code, answer.status_code) == (200, 401)
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert [response.headers[ALLOWED] for response in (preflight, answer)] == [allowed] * 2


async def test_only_pages_of_allowed_origins_are_answered(engine: ScriptedEngine) -> None:
    async with (
        serve_http(engine, ALLOWED_ORIGINS=PAGE) as port,
        httpx.AsyncClient(base_url=f"{port.url}/v1", timeout=HUNG_S) as http_client,
    ):
        for origin, allowed, statuses in ((PAGE, PAGE, (200, 200)), (OTHER_PAGE, None, (400, 403))):
            headers = CROSS_SITE | {"Origin": origin}
            preflight = await http_client.options("/models", headers=headers | PREFLIGHT)
            response = await http_client.get("/models", headers=headers)
            assert (preflight.status_code, response.status_code) == statuses
            for answer in (preflight, response):
                assert answer.headers.get(ALLOWED) == allowed
        # A browser doesn't send the origin of a page that shows an image.
        assert (await http_client.get("/models", headers=CROSS_SITE)).status_code == 403
        # Under a foreign host name, the server and the page have the same origin for the browser.
        rebound = REBOUND | {"Origin": PAGE}
        assert (await http_client.get("/models", headers=rebound)).status_code == 403
        assert (await http_client.get("/models")).status_code == 200
        # A reverse proxy of this machine may pass on an allowed name.
        proxied = {"Host": PAGE.removeprefix("https://")}
        assert (await http_client.get("/models", headers=proxied)).status_code == 200


@pytest.mark.parametrize(
    ("host", "environ"),
    # A container in a pod or behind the load balancer, one with a key, and a server for any origin.
    [("0.0.0.0", {}), ("0.0.0.0", KEY), ("127.0.0.1", {"ALLOWED_ORIGINS": "*"})],
)
async def test_a_server_that_its_settings_open_to_others_accepts_any_host_name(
    engine: ScriptedEngine, host: str, environ: dict[str, str]
) -> None:
    async with serve_http(engine, host, **environ) as port:
        for headers in (REBOUND, CROSS_SITE, CROSS_SITE | {"Origin": OTHER_PAGE}):
            assert await request_status(port.url, headers | RIGHT_KEY, "/v1/models") == 200


# A worker that doesn't start:


FAILURE = StartFailed("MODEL_NAME is not set")


def client_of_failed_start(
    url: str = "http://worker:80", host: str = "0.0.0.0", **environ: str
) -> httpx.AsyncClient:
    """Return a client of the server that replaces a worker that doesn't start."""
    return client_of(make_refusing_server(FAILURE, environ, host, 80, 8080).config.app, url)


async def test_every_response_has_the_reason_of_the_failed_start() -> None:
    async with client_of_failed_start() as http_client:
        for path in (CHAT, "/ping", "/health", "/x"):
            response = await http_client.post(path, json={})
            # Without this header, OpenAI's client would repeat the request.
            assert (response.status_code, response.headers["x-should-retry"]) == (503, "false")
            error = error_of(response)
            assert (error["message"], error["retryable"]) == (FAILURE.message, False)


async def test_the_reason_is_hidden_without_the_key_and_on_the_health_port() -> None:
    async with client_of_failed_start("http://worker:8080") as health_port:
        assert (await health_port.get("/v1/models")).status_code == 404
        assert (await health_port.get("/ping")).status_code == 503
    async with client_of_failed_start(**KEY) as http_client:
        assert (await http_client.get("/v1/models")).status_code == 401
        ping = await http_client.get("/ping")
        assert (ping.status_code, ping.content) == (503, b"")
        response = await http_client.get("/v1/models", headers=RIGHT_KEY)
    assert error_of(response)["message"] == FAILURE.message


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [(f'["{PAGE}"]', PAGE), ('["https://x"', None), ("{", None), (f"[{PAGE}", None)],
)
async def test_a_page_of_an_allowed_origin_may_read_the_reason(
    origins: str, allowed: str | None
) -> None:
    async with client_of_failed_start(ALLOWED_ORIGINS=origins) as http_client:
        response = await http_client.get("/v1/models", headers={"origin": PAGE})
    assert error_of(response)["message"] == FAILURE.message
    assert response.headers.get(ALLOWED) == allowed


@pytest.mark.parametrize(("host", "status"), [("evil.example:8080", 403), ("127.0.0.1", 503)])
async def test_a_page_of_another_host_cannot_read_the_reason(host: str, status: int) -> None:
    async with client_of_failed_start(f"http://{host}", "127.0.0.1") as http_client:
        response = await http_client.get("/ping")
    assert (response.status_code, "MODEL_NAME" in response.text) == (status, status == 503)
