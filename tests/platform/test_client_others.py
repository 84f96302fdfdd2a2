"""The proxy for other clients than OpenAI's: Anthropic's, LLM Engine's, the platform's SDK's."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from demo_model import ANSWERS
from support.processes.background import HUNG_S, wait_until
from support.processes.client_proxy import ClientProxy, client_proxy
from support.processes.local_endpoint import LocalEndpoint

KEY = "sk-of-callers"
COUNT = "Count to ten."
MESSAGE: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": COUNT}],
    "max_tokens": 100,
    "extra_body": {"temperature": 0},
}
PROMPT = {"prompt": "Once upon a time", "max_new_tokens": 3, "temperature": 0.0}
MODEL = {"model_endpoint_name": "demo"}


@pytest.fixture(scope="module")
def proxy(
    make_endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientProxy]:
    log = tmp_path_factory.mktemp("proxy") / "log"
    with client_proxy(make_endpoint.api_url, log, PROXY_API_KEY=KEY) as running:
        yield running


def test_anthropics_client_is_answered_whole_and_streamed(proxy: ClientProxy) -> None:
    with Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0) as client:
        whole = client.messages.create(**MESSAGE)
        assert whole.content[0].to_dict()["text"] == ANSWERS[COUNT]
        with client.messages.stream(**MESSAGE) as stream:
            assert "".join(stream.text_stream) == ANSWERS[COUNT]
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            client.messages.create(**{**MESSAGE, "model": "claude"})


@pytest.fixture
def llm_engine(proxy: ClientProxy) -> Iterator[httpx.Client]:
    """Return a client that sends what LLM Engine's does."""
    with httpx.Client(
        base_url=proxy.url, headers={"x-api-key": KEY}, auth=(KEY, ""), timeout=HUNG_S
    ) as client:
        yield client


def test_llm_engines_routes_have_its_shapes(llm_engine: httpx.Client) -> None:
    whole = llm_engine.post("/v1/llm/completions-sync", params=MODEL, json=PROMPT).json()
    assert whole["output"]["num_completion_tokens"] == 3
    streamed = llm_engine.post("/v1/llm/completions-stream", params=MODEL, json=PROMPT)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.count("data: ") == 3
    id = llm_engine.post("/v1/files", files={"file": ("a.txt", "ä".encode())}).json()["id"]
    content = llm_engine.get(f"/v1/files/{id}/content").json()
    assert content == {"id": id, "content": "ä"}
    assert llm_engine.delete(f"/v1/files/{id}").json()["deleted"]
    refused = llm_engine.put("/v1/llm/model-endpoints/demo", json={"labels": None})
    assert (refused.status_code, "detail" in refused.json()) == (400, True)


def test_its_batches_begin_by_themselves(llm_engine: httpx.Client) -> None:
    content = {"prompts": ["a", "b"], "max_new_tokens": 3, "temperature": 0}
    body = {"model_config": {"model": "demo"}, "content": content}
    asked = {**body, "output_data_path": "out/proxied.json"}
    job = llm_engine.post("/v1/llm/batch-completions", json=asked).json()["job_id"]

    def status() -> str:
        found: str = llm_engine.get(f"/v2/batch-completions/{job}").json()["job"]["status"]
        return found

    wait_until(lambda: status() not in ("queued", "running"))
    assert status() == "completed"


def test_the_platforms_own_api_takes_raw_jobs(proxy: ClientProxy) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"{proxy.url}/v2/local"
    with httpx.Client(base_url=url, headers=headers, timeout=HUNG_S) as client:
        given = {"prompt": "Hi", "sampling_params": {"max_tokens": 2, "ignore_eos": True}}
        ended = client.post("/runsync", json={"input": given}).json()
        assert ended["output"][0]["usage"]["output"] == 2
        assert client.get(f"/status/{ended['id']}").json()["status"] == "COMPLETED"
        assert httpx.post(f"{url}/runsync", json={"input": given}).status_code == 401
