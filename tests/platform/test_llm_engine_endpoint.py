"""LLM Engine's routes on the local platform, asked in the manner of its client."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from support.processes.background import HUNG_S, wait_until
from support.processes.local_endpoint import LocalEndpoint

# All keys of its form, as the client sends them: null where its caller has said nothing.
PROMPT: dict[str, Any] = {
    "prompt": "Once upon a time there was a small worker",
    "max_new_tokens": 3,
    "temperature": 0.0,
    "stop_sequences": None,
    "return_token_log_probs": False,
    "presence_penalty": None,
    "frequency_penalty": None,
    "top_k": None,
    "top_p": None,
    "include_stop_str_in_output": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "skip_special_tokens": True,
}
MODEL = {"model_endpoint_name": "demo"}
LARGE = json.dumps({"lines": ["äöü€" * 200_000]})


@pytest.fixture(params=["the root", "the endpoint's URL"])
def client(request: pytest.FixtureRequest, make_endpoint: LocalEndpoint) -> Iterator[httpx.Client]:
    url = make_endpoint.url
    base = url.removesuffix("/v2/local") if request.param == "the root" else url
    headers = {"x-api-key": "root"}
    with httpx.Client(
        base_url=base, headers=headers, auth=("root", ""), timeout=HUNG_S
    ) as connected:
        yield connected


def answered(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["detail"]


def uploaded(client: httpx.Client, name: str, content: bytes) -> str:
    id: str = answered(client.post("/v1/files", files={"file": (name, content)}))["id"]
    return id


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data:")) for line in response.iter_lines() if line]


def test_a_file_is_uploaded_listed_described_read_and_deleted(client: httpx.Client) -> None:
    size = len(LARGE.encode())
    id = uploaded(client, "ä.json", LARGE.encode())
    shown = {"id": id, "filename": "ä.json", "size": size}
    assert shown in answered(client.get("/v1/files"))["files"]
    assert answered(client.get(f"/v1/files/{id}")).items() >= shown.items()
    assert answered(client.get(f"/v1/files/{id}/content")) == {"id": id, "content": LARGE}
    assert answered(client.delete(f"/v1/files/{id}"))["deleted"]
    assert refused(client.get(f"/v1/files/{id}/content"))[0] == 404


def test_a_file_that_is_no_text_is_read_as_base64(client: httpx.Client) -> None:
    binary = b"\0\xff" * 500_000
    id = uploaded(client, "a.bin", binary)
    assert answered(client.get(f"/v1/files/{id}"))["size"] == 1_000_000
    content = answered(client.get(f"/v1/files/{id}/content"))["content"]
    assert base64.b64decode(content, validate=True) == binary


def test_a_batch_of_prompts_is_created_polled_and_written_to_the_volume(
    client: httpx.Client, make_endpoint: LocalEndpoint
) -> None:
    prompts = {"prompts": [PROMPT["prompt"]] * 3, **PROMPT}
    del prompts["prompt"]
    output = f"out/{uuid4()}.json"
    model = {"model": "demo", "checkpoint_path": None, "num_shards": 1, "labels": {"team": "a"}}
    body = {
        "input_data_path": None,
        "output_data_path": output,
        "content": prompts,
        "model_config": model,
        "data_parallelism": 1,
        "max_runtime_sec": 86_400,
        "priority": None,
        "tool_config": None,
    }
    job = answered(client.post("/v1/llm/batch-completions", json=body))["job_id"]

    def shown() -> Any:
        return answered(client.get(f"/v2/batch-completions/{job}"))["job"]

    wait_until(lambda: shown()["status"] not in {"queued", "running"})
    assert shown()["status"] == "completed"
    volume: Path = make_endpoint.log.parent / "volume"
    items = json.loads((volume / output).read_bytes())
    assert [item["num_completion_tokens"] for item in items] == [3, 3, 3]
    cancelled = client.post(f"/v2/batch-completions/{job}/actions/cancel", json={})
    assert answered(cancelled) == {"success": False}
    assert job in [one["job_id"] for one in answered(client.get("/v2/batch-completions"))["jobs"]]


def test_a_completion_is_the_same_whole_and_as_a_stream(client: httpx.Client) -> None:
    whole = answered(client.post("/v1/llm/completions-sync", params=MODEL, json=PROMPT))["output"]
    assert whole["num_completion_tokens"] == 3
    route = "/v1/llm/completions-stream"
    with client.stream("POST", route, params=MODEL, json=PROMPT) as response:
        assert response.status_code == 200
        outputs = [event["output"] for event in events(response)]
    assert "".join(output["text"] for output in outputs) == whole["text"]
    assert [output["finished"] for output in outputs] == [False, False, True]
    assert outputs[-1]["num_prompt_tokens"] == whole["num_prompt_tokens"]


@pytest.mark.parametrize("route", ["/v1/llm/completions-sync", "/v1/llm/completions-stream"])
def test_what_is_wrong_is_an_error_that_the_client_knows(client: httpx.Client, route: str) -> None:
    wrong = PROMPT | {"temperature": 2}
    status, detail = refused(client.post(route, params=MODEL, json=wrong))
    assert (status, "temperature" in detail) == (400, True)
    other = {"model_endpoint_name": "org/other"}
    assert refused(client.post(route, params=other, json=PROMPT))[0] == 404


def test_models_are_listed_and_described(client: httpx.Client) -> None:
    listed = answered(client.get("/v1/llm/model-endpoints"))["model_endpoints"]
    assert {"demo", "tiny/demo"} <= {one["name"] for one in listed}
    model = answered(client.get("/v1/llm/model-endpoints/tiny/demo"))
    assert (model["name"], model["status"]) == ("tiny/demo", "READY")
    assert refused(client.get("/v1/llm/model-endpoints/other"))[0] == 404
    assert refused(client.delete("/v1/llm/model-endpoints/demo"))[0] == 400


def test_what_a_worker_does_not_do_is_refused_with_every_verb(client: httpx.Client) -> None:
    status, detail = refused(client.put("/v1/llm/fine-tunes/ft-1/cancel"))
    assert (status, "fine-tuning job" in detail) == (404, True)
    assert refused(client.put("/v1/llm/model-endpoints/demo", json={"labels": None}))[0] == 400
