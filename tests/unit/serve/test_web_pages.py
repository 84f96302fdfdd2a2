"""Pages in a browser on this machine reach no worker that asks for no key; its programs do."""

from pathlib import Path

import httpx
import pytest
from support.engine.connections import serving
from support.engine.scripted import ScriptedEngine
from support.served import KEY, client_of, error_of
from support.tables.web_pages import ANSWERED, HERE, status

from worker.errors import StartFailed
from worker.serve.running import refusing

FILES = "/v1/files"
PAGE = "https://chat.example.com"
OTHER = "https://evil.example"
# What a browser sends for a page of another site: a post has its origin, an image's GET has none.
CROSS = {"Host": HERE, "Sec-Fetch-Site": "cross-site"}
REBOUND = {"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"}


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
        httpx.AsyncClient(base_url=port.url) as http_client,
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
    ("url", "reads"),
    [
        ("http://evil.example/ping", False),
        ("http://evil.example:8080/ping", False),
        ("http://127.0.0.1/ping", True),
    ],
)
async def test_a_page_does_not_read_why_the_worker_does_not_start(url: str, reads: bool) -> None:
    app = refusing(StartFailed("MODEL_NAME is not set"), {}, "127.0.0.1", 80, 8080).config.app
    async with client_of(app) as http_client:
        answer = await http_client.get(url)
    assert (answer.status_code, "MODEL_NAME" in answer.text) == (503 if reads else 403, reads)


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Sec-Fetch-Mode": "cors"}


async def test_pages_of_an_allowed_origin_alone_are_answered(engine: ScriptedEngine) -> None:
    async with (
        serving(engine, ALLOWED_ORIGINS=PAGE) as port,
        httpx.AsyncClient(base_url=f"{port.url}/v1") as http_client,
    ):
        for origin, allowed, statuses in ((PAGE, PAGE, (200, 200)), (OTHER, None, (400, 403))):
            sent = CROSS | {"Origin": origin}
            asked = await http_client.options("/models", headers=sent | PREFLIGHT)
            got = await http_client.get("/models", headers=sent)
            assert (asked.status_code, got.status_code) == statuses
            for response in (asked, got):
                assert response.headers.get("access-control-allow-origin") == allowed
        # Whose image it is, a browser does not say.
        assert (await http_client.get("/models", headers=CROSS)).status_code == 403
        # By a foreign name it is another server for the browser, and the page another page.
        rebound = REBOUND | {"Origin": PAGE}
        assert (await http_client.get("/models", headers=rebound)).status_code == 403
        assert (await http_client.get("/models")).status_code == 200


@pytest.mark.parametrize(
    ("host", "environ"),
    [
        # A container's, in a pod or behind the platform's load balancer.
        ("0.0.0.0", {}),
        # Whoever has the key is answered, by whatever name.
        ("127.0.0.1", KEY),
        ("127.0.0.1", {"ALLOWED_ORIGINS": "*"}),
    ],
)
async def test_what_is_open_to_others_by_its_settings_has_any_name(
    engine: ScriptedEngine, host: str, environ: dict[str, str]
) -> None:
    key = {"Authorization": "Bearer sk-right"}
    async with serving(engine, host, **environ) as port:
        for headers in (REBOUND, CROSS, CROSS | {"Origin": OTHER}):
            assert await status(port.url, headers | key, "/v1/models") == 200
