"""Tests of LLM Engine's routes on a real worker.

tests/clients tests LLM Engine's own client. An example shows the classes of our client.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from support.processes.background import HUNG_S, wait_until
from support.processes.servers import KEY, LocalEndpoint, ServerProcess

# Keys that the client sends as null unless the caller sets them.
NULL_KEYS = ("stop_sequences", "presence_penalty", "top_k", "top_p", "guided_json", "guided_choice")
PARAMS: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0.0, **dict.fromkeys(NULL_KEYS)}
PROMPT = {**PARAMS, "prompt": "Once upon a time there was a small worker"}
MODEL = {"model_endpoint_name": "demo"}
ACTIVE_STATUSES = ("queued", "running")


@pytest.fixture(params=["the root", "the proxy"])
def llm_engine_http(
    request: pytest.FixtureRequest, make_endpoint: LocalEndpoint, proxy: ServerProcess
) -> Iterator[httpx.Client]:
    base = proxy.url if request.param == "the proxy" else make_endpoint.root_url
    headers = {"x-api-key": KEY}
    with httpx.Client(base_url=base, headers=headers, auth=(KEY, ""), timeout=HUNG_S) as client:
        yield client


def read_json(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def read_refusal(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["detail"]


def test_a_batch_of_prompts_is_created_polled_and_written_to_the_volume(
    llm_engine_http: httpx.Client, make_endpoint: LocalEndpoint
) -> None:
    output = f"out/{uuid4()}.json"
    body = {
        **{"model_config": {"model": "demo", "checkpoint_path": None, "labels": {"team": "a"}}},
        **{"content": {**PARAMS, "prompts": ["Once upon a time"] * 3}, "output_data_path": output},
        **{"input_data_path": None, "data_parallelism": 1, "priority": None, "tool_config": None},
    }
    job = read_json(llm_engine_http.post("/v1/llm/batch-completions", json=body))["job_id"]

    def status() -> str:
        found: str = read_json(llm_engine_http.get(f"/v2/batch-completions/{job}"))["job"]["status"]
        return found

    wait_until(lambda: status() not in ACTIVE_STATUSES)
    assert status() == "completed"
    items = json.loads((make_endpoint.log.parent / "volume" / output).read_bytes())
    assert [item["num_completion_tokens"] for item in items] == [3, 3, 3]
    cancelled = llm_engine_http.post(f"/v2/batch-completions/{job}/actions/cancel", json={})
    assert read_json(cancelled) == {"success": False}
    listed = read_json(llm_engine_http.get("/v2/batch-completions"))["jobs"]
    assert job in [one["job_id"] for one in listed]


def test_a_completion_is_the_same_whole_and_as_a_stream(llm_engine_http: httpx.Client) -> None:
    route = "/v1/llm/completions"
    request: dict[str, Any] = {"params": MODEL, "json": PROMPT}
    whole = read_json(llm_engine_http.post(f"{route}-sync", **request))["output"]
    assert whole["num_completion_tokens"] == 3
    response = llm_engine_http.post(f"{route}-stream", **request)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(one.removeprefix("data:")) for one in response.text.splitlines() if one]
    outputs = [event["output"] for event in events]
    assert "".join(output["text"] for output in outputs) == whole["text"]
    assert [output["finished"] for output in outputs] == [False, False, True]
    assert outputs[-1]["num_prompt_tokens"] == whole["num_prompt_tokens"]


def test_refusals_have_the_status_and_detail_that_the_client_expects(
    llm_engine_http: httpx.Client,
) -> None:
    wrong = {**PROMPT, "temperature": 2}
    for route in ("/v1/llm/completions-sync", "/v1/llm/completions-stream"):
        status, detail = read_refusal(llm_engine_http.post(route, params=MODEL, json=wrong))
        assert (status, "temperature" in detail) == (400, True)
    models = "/v1/llm/model-endpoints"
    assert read_json(llm_engine_http.get(f"{models}/tiny/demo"))["status"] == "READY"
    assert read_refusal(llm_engine_http.get(f"{models}/other"))[0] == 404
    assert read_refusal(llm_engine_http.put(f"{models}/demo", json={"labels": None}))[0] == 400
    status, detail = read_refusal(llm_engine_http.put("/v1/llm/fine-tunes/ft-1/cancel"))
    assert (status, "fine-tuning job" in detail) == (404, True)
