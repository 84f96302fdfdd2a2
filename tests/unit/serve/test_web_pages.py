"""Pages in a browser on this machine reach no worker that asks for no key; its programs do."""

from pathlib import Path

import httpx
import pytest
from support.engine.connections import serving
from support.engine.scripted import ScriptedEngine
from support.served import error_of
from support.tables.web_pages import ANSWERED, HERE, status

from worker.errors import StartFailed
from worker.serve.running import refusing

FILES = "/v1/files"
PAGE = "https://chat.example.com"
OTHER = "https://evil.example"
# What a browser sends for a page of another site: a post has its origin, an image's GET has none.
CROSS = {"Host": HERE, "Sec-Fetch-Site": "cross-site"}
REBOUND = {"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize(("headers", "answered"), ANSWERED)
async def test_programs_are_answered_and_web_pages_are_not(
    headers: dict[str, str], answered: bool
) -> None:
    with ScriptedEngine() as engine:
        async with serving(engine) as port:
            for path in ("/v1/models", "/ping"):
                assert await status(port.url, headers, path) == (200 if answered else 403)


def below(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


async def test_a_page_puts_no_file_on_the_volume_and_reads_none(tmp_path: Path) -> None:
    with ScriptedEngine() as engine:
        async with (
            serving(engine, FILES_PATH=str(tmp_path)) as port,
            httpx.AsyncClient(base_url=port.url) as http,
        ):
            file = {"file": ("a.jsonl", b"mine")}
            mine = (await http.post(FILES, files=file)).json()["id"]
            kept = below(tmp_path)
            form = await http.post(FILES, files=file, headers=CROSS | {"Origin": OTHER})
            posted = await http.post(FILES, json={"content": "x"}, headers=REBOUND)
            read = await http.get(f"{FILES}/{mine}/content", headers=REBOUND)
            deleted = await http.delete(f"{FILES}/{mine}", headers=REBOUND)
            assert (await http.get(f"{FILES}/{mine}/content")).content == b"mine"
    assert [one.status_code for one in (form, posted, read, deleted)] == [403] * 4
    assert "ALLOWED_ORIGINS" in error_of(form)["message"]
    assert "SERVE_API_KEY" in error_of(read)["message"]
    assert below(tmp_path) == kept


async def test_a_page_does_not_read_why_the_worker_does_not_start() -> None:
    app = refusing(StartFailed("MODEL_NAME is not set"), {}, "127.0.0.1", 80, 8080).config.app
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]  # any app
    async with httpx.AsyncClient(transport=transport) as http:
        for url in ("http://evil.example/ping", "http://evil.example:8080/ping"):
            refused = await http.get(url)
            assert (refused.status_code, "MODEL_NAME" in refused.text) == (403, False)
        assert "MODEL_NAME" in (await http.get("http://127.0.0.1/ping")).text


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Sec-Fetch-Mode": "cors"}


async def test_pages_of_an_allowed_origin_are_answered_and_no_others() -> None:
    with ScriptedEngine() as engine:
        async with (
            serving(engine, ALLOWED_ORIGINS=PAGE) as port,
            httpx.AsyncClient(base_url=port.url) as http,
        ):
            for origin, preflight, answer in ((PAGE, 200, 200), (OTHER, 400, 403)):
                sent = CROSS | {"Origin": origin}
                asked = await http.options("/v1/models", headers=sent | PREFLIGHT)
                got = await http.get("/v1/models", headers=sent)
                assert (asked.status_code, got.status_code) == (preflight, answer)
                for response in (asked, got):
                    allowed = response.headers.get("access-control-allow-origin")
                    assert allowed == (PAGE if origin == PAGE else None)
            # Whose image it is, a browser does not say.
            assert (await http.get("/v1/models", headers=CROSS)).status_code == 403
            # By a foreign name it is another server for the browser, and the page another page.
            rebound = REBOUND | {"Origin": PAGE}
            assert (await http.get("/v1/models", headers=rebound)).status_code == 403
            assert (await http.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    ("host", "environ"),
    [
        # A container's, in a pod or behind the platform's load balancer.
        ("0.0.0.0", {}),
        # Whoever has the key is answered, by whatever name.
        ("127.0.0.1", {"SERVE_API_KEY": "sk-right"}),
        ("127.0.0.1", {"ALLOWED_ORIGINS": "*"}),
    ],
)
async def test_what_is_open_to_others_by_its_settings_has_any_name(
    host: str, environ: dict[str, str]
) -> None:
    key = {"Authorization": "Bearer sk-right"}
    with ScriptedEngine() as engine:
        async with serving(engine, host, **environ) as port:
            for headers in (REBOUND, CROSS, CROSS | {"Origin": OTHER}):
                assert await status(port.url, headers | key, "/v1/models") == 200
