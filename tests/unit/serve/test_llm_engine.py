"""LLM Engine's client over HTTP: statuses that it knows, base addresses, links without a key."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.engine.scripted import (
    CHAT,
    ScriptedEngine,
    events_in,
    replying,
    tokens,
)
from support.models.lora import CONFIG, WEIGHTS
from support.served import client, error_of

KEY = "sk-right"
ENDPOINTS = "/v1/llm/model-endpoints"
COMPLETIONS = "/v1/llm/completions-sync?model_endpoint_name=demo"
BASIC = {"authorization": "Basic c2stcmlnaHQ6"}
CARDS = json.dumps({"object": "list", "data": [{"id": "demo", "parent": None, "root": "demo"}]})
CONTENT = b"weights" * 1_000


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A server whose volume has the adapter "tuned"."""
    folder = tmp_path / "adapters" / "tuned"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(CONTENT)
    with ScriptedEngine(*tokens("a", "b"), app=replying(CARDS)) as engine:
        engine.adapters = ["tuned"]
        async with client(engine, SERVE_API_KEY=KEY, BASE_PATH=str(tmp_path)) as connected:
            yield connected


async def urls_of(http: httpx.AsyncClient, **headers: str) -> dict[str, str]:
    body = {"model_name": "tuned"}
    response = await http.post(f"{ENDPOINTS}/download", json=body, headers={**BASIC, **headers})
    urls: dict[str, str] = response.json()["urls"]
    return urls


async def test_a_completion_is_whole_or_a_stream_of_events(http: httpx.AsyncClient) -> None:
    whole = await http.post(COMPLETIONS, json={"prompt": "Hi"}, headers=BASIC)
    assert whole.json()["output"]["text"] == "ab"
    path = COMPLETIONS.replace("sync", "stream")
    stream = await http.post(path, json={"prompt": "Hi"}, headers=BASIC)
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert [event["output"]["text"] for event in events_in(stream.text)] == ["a", "b"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", COMPLETIONS, b"{}", 400),
        ("POST", COMPLETIONS, b"[", 400),
        ("GET", f"{ENDPOINTS}/none", b"", 404),
        ("GET", "/v1/files/file-none", b"", 404),
        # For other clients 405, 415 and 405.
        ("DELETE", COMPLETIONS, b"", 400),
        ("POST", "/v1/files", b"text", 400),
        ("BREW", "/v1/files", b"", 400),
    ],
)
async def test_an_error_has_a_status_and_a_text_that_the_client_knows(
    http: httpx.AsyncClient, method: str, path: str, content: bytes, status: int
) -> None:
    response = await http.request(method, path, content=content, headers=BASIC)
    assert response.status_code == status
    assert response.json()["detail"] == error_of(response)["message"]


async def test_on_its_own_routes_the_client_needs_no_basic_to_be_known(
    http: httpx.AsyncClient,
) -> None:
    key = {"x-api-key": KEY}
    its = await http.delete(f"{ENDPOINTS}/demo", headers=key)
    others = await http.delete(CHAT, headers=key)
    assert (its.status_code, others.status_code) == (400, 405)
    assert "detail" in its.json()
    assert "detail" not in others.json()
    assert (await http.get(ENDPOINTS)).json()["detail"].startswith("The request carries no key")


@pytest.mark.parametrize("base", ["", "/v1", "/v1/v1"])
async def test_a_base_address_may_have_the_version_already(
    http: httpx.AsyncClient, base: str
) -> None:
    for path in (f"{base}{ENDPOINTS}", f"{base}/v2/batch-completions"):
        assert (await http.get(path, headers=BASIC)).status_code == 200


async def test_links_to_an_adapters_files_work_without_the_key(http: httpx.AsyncClient) -> None:
    urls = await urls_of(http)
    assert urls.keys() == {CONFIG, WEIGHTS}
    for name, content in ((CONFIG, b"{}"), (WEIGHTS, CONTENT)):
        assert urls[name].startswith("http://worker/")
        response = await http.get(urls[name])
        assert (response.status_code, response.content) == (200, content)
    part = await http.get(urls[WEIGHTS], headers={"range": "bytes=7-13"})
    assert (part.status_code, part.content) == (206, b"weights")


async def test_a_link_opens_that_file_only(http: httpx.AsyncClient) -> None:
    link = (await urls_of(http))[CONFIG]
    for changed in (
        link.replace(CONFIG, WEIGHTS),
        link.replace("expires=", "expires=9"),
        link[:-1],
        link.partition("?")[0],
    ):
        assert (await http.get(changed)).status_code == 401
    assert (await http.post(link)).status_code == 401
    assert (await http.get(link.partition("?")[0], headers=BASIC)).content == b"{}"


async def test_a_file_that_an_adapter_has_not_is_404(http: httpx.AsyncClient) -> None:
    for path in ("tuned/none", "none/none", "tuned/..%2F..%2Fsecret"):
        response = await http.get(f"/v1/llm/model-files/{path}", headers=BASIC)
        assert response.status_code == 404


async def test_links_lead_to_the_address_that_the_caller_has(http: httpx.AsyncClient) -> None:
    urls = await urls_of(http, host="models.example:8443", **{"x-forwarded-proto": "https"})
    assert urls[CONFIG].startswith(
        f"https://models.example:8443/v1/llm/model-files/tuned/{CONFIG}?"
    )
