"""LLM Engine's client over HTTP: statuses that it knows, base URLs, and links without a key."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, static_app, tokens
from support.serve_client import KEY, ServeClient, error_of

from worker.volume.adapters import CONFIG, WEIGHTS

ENDPOINTS = "/v1/llm/model-endpoints"
COMPLETIONS = "/v1/llm/completions-sync?model_endpoint_name=demo"
BASIC = {"authorization": "Basic c2stcmlnaHQ6"}
X_API_KEY = {"x-api-key": "sk-right"}
CARDS = [{"id": "demo", "parent": None, "root": "demo"}]
CONTENT = b"weights" * 1_000


@pytest.fixture
def environ(engine: ScriptedEngine, tmp_path: Path) -> dict[str, str]:
    """Settings of a server whose volume has the adapter "tuned"."""
    folder = tmp_path / "adapters" / "tuned"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(CONTENT)
    engine.script, engine.adapters = tuple(tokens("a", "b")), ["tuned"]
    engine.app = static_app(json.dumps({"object": "list", "data": CARDS}))
    return {**KEY, "BASE_PATH": str(tmp_path)}


@pytest.fixture
async def urls(http_client: ServeClient) -> dict[str, str]:
    """The links to the adapter's files that a caller at another address gets."""
    headers = {**BASIC, "host": "models.example:8443", "x-forwarded-proto": "https"}
    body = {"model_name": "tuned"}
    response = await http_client.post(f"{ENDPOINTS}/download", json=body, headers=headers)
    urls: dict[str, str] = response.json()["urls"]
    return urls


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status"),
    [
        ("POST", CHAT, b"[", BASIC, 400),
        ("GET", "/v1/files/file-none", b"", BASIC, 404),
        # On LLM Engine's own routes, the client is recognized without basic authentication.
        ("POST", COMPLETIONS, b"{}", X_API_KEY, 400),
        ("GET", f"{ENDPOINTS}/none", b"", X_API_KEY, 404),
        ("GET", ENDPOINTS, b"", {}, 401),
        # Other clients get 405, 415 and 405.
        ("DELETE", COMPLETIONS, b"", BASIC, 400),
        ("POST", "/v1/files", b"text", BASIC, 400),
        ("BREW", "/v1/files", b"", BASIC, 400),
    ],
)
async def test_an_error_has_a_status_and_a_detail_that_the_client_knows(
    http_client: ServeClient, method: str, path: str, content: bytes, headers: Any, status: int
) -> None:
    response = await http_client.request(method, path, content=content, headers=headers)
    assert response.status_code == status
    assert response.json()["detail"] == error_of(response)["message"]
    # Other clients get no detail.
    response = await http_client.delete(CHAT, headers=X_API_KEY)
    assert (response.status_code, response.json().keys()) == (405, {"error"})


@pytest.mark.parametrize("base", ["", "/v1", "/v1/v1"])
async def test_a_base_url_may_have_the_version(http_client: ServeClient, base: str) -> None:
    for path in (ENDPOINTS, "/v2/batch-completions"):
        assert (await http_client.get(f"{base}{path}", headers=BASIC)).status_code == 200


async def test_links_work_without_the_key(http_client: ServeClient, urls: dict[str, str]) -> None:
    contents = {CONFIG: b"{}", WEIGHTS: CONTENT}
    for name, url in urls.items():
        # The links have the address that the caller used.
        assert url.startswith(f"https://models.example:8443/v1/llm/model-files/tuned/{name}?")
        assert (await http_client.get(url)).content == contents.pop(name)
    assert contents == {}
    partial_response = await http_client.get(urls[WEIGHTS], headers={"range": "bytes=7-13"})
    assert (partial_response.status_code, partial_response.content) == (206, b"weights")


async def test_a_link_gives_access_to_its_file_only(
    http_client: ServeClient, urls: dict[str, str]
) -> None:
    link = urls[CONFIG]
    without_signature = link.partition("?")[0]
    later = link.replace("expires=", "expires=9")
    for changed_link in (link.replace(CONFIG, WEIGHTS), later, link[:-1], without_signature):
        assert (await http_client.get(changed_link)).status_code == 401
    assert (await http_client.post(link)).status_code == 401
    assert (await http_client.get(without_signature, headers=BASIC)).content == b"{}"


@pytest.mark.parametrize("path", ["tuned/none", "none/none", "tuned/..%2F..%2Fsecret"])
async def test_an_unknown_file_of_an_adapter_is_404(http_client: ServeClient, path: str) -> None:
    response = await http_client.get(f"/v1/llm/model-files/{path}", headers=BASIC)
    assert response.status_code == 404
