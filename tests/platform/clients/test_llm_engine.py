"""LLM Engine's routes and our classes, on a real worker; tests/clients has its own client."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from support.processes.background import HUNG_S, wait_until
from support.processes.client_proxy import ACCOUNT, ClientProxy
from support.processes.http_worker import KEY
from support.processes.local_endpoint import LocalEndpoint

from llm_worker_client import Completion, File, FineTune, Model, configure
from llm_worker_client.llm_engine import (
    CreateBatchCompletionsModelConfig,
    CreateBatchCompletionsRequestContent,
    FilteredChatCompletionV2Request,
    errors,
)

# As the client sends it: null where its caller has said nothing.
UNSAID = ("stop_sequences", "presence_penalty", "top_k", "top_p", "guided_json", "guided_choice")
ASKED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0.0, **dict.fromkeys(UNSAID)}
PROMPT = {**ASKED, "prompt": "Once upon a time there was a small worker"}
MODEL = {"model_endpoint_name": "demo"}
LARGE = json.dumps({"lines": ["äöü€" * 200_000]})
RUNS = ("queued", "running")


@pytest.fixture(params=["the root", "the endpoint's URL", "the proxy"])
def http_client(
    request: pytest.FixtureRequest, make_endpoint: LocalEndpoint, proxy: ClientProxy
) -> Iterator[httpx.Client]:
    root, url = make_endpoint.url.removesuffix("/v2/local"), make_endpoint.url
    base = {"the root": root, "the endpoint's URL": url, "the proxy": proxy.url}[request.param]
    headers = {"x-api-key": KEY}
    with httpx.Client(base_url=base, headers=headers, auth=(KEY, ""), timeout=HUNG_S) as client:
        yield client


def answered(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["detail"]


def test_a_file_is_uploaded_listed_described_read_and_deleted(http_client: httpx.Client) -> None:
    form = {"file": ("ä.json", LARGE.encode())}
    id = answered(http_client.post("/v1/files", files=form))["id"]
    shown = {"id": id, "filename": "ä.json", "size": len(LARGE.encode())}
    assert shown in answered(http_client.get("/v1/files"))["files"]
    assert answered(http_client.get(f"/v1/files/{id}")).items() >= shown.items()
    assert answered(http_client.get(f"/v1/files/{id}/content")) == {"id": id, "content": LARGE}
    assert answered(http_client.delete(f"/v1/files/{id}"))["deleted"]
    assert refused(http_client.get(f"/v1/files/{id}/content"))[0] == 404


def test_a_batch_of_prompts_is_created_polled_and_written_to_the_volume(
    http_client: httpx.Client, make_endpoint: LocalEndpoint
) -> None:
    output = f"out/{uuid4()}.json"
    body = {
        **{"model_config": {"model": "demo", "checkpoint_path": None, "labels": {"team": "a"}}},
        **{"content": {**ASKED, "prompts": ["Once upon a time"] * 3}, "output_data_path": output},
        **{"input_data_path": None, "data_parallelism": 1, "priority": None, "tool_config": None},
    }
    job = answered(http_client.post("/v1/llm/batch-completions", json=body))["job_id"]

    def status() -> str:
        found: str = answered(http_client.get(f"/v2/batch-completions/{job}"))["job"]["status"]
        return found

    wait_until(lambda: status() not in RUNS)
    assert status() == "completed"
    items = json.loads((make_endpoint.log.parent / "volume" / output).read_bytes())
    assert [item["num_completion_tokens"] for item in items] == [3, 3, 3]
    cancelled = http_client.post(f"/v2/batch-completions/{job}/actions/cancel", json={})
    assert answered(cancelled) == {"success": False}
    listed = answered(http_client.get("/v2/batch-completions"))["jobs"]
    assert job in [one["job_id"] for one in listed]


def test_a_completion_is_the_same_whole_and_as_a_stream(http_client: httpx.Client) -> None:
    route, asked = "/v1/llm/completions", {"params": MODEL, "json": PROMPT}
    whole = answered(http_client.post(f"{route}-sync", **asked))["output"]
    assert whole["num_completion_tokens"] == 3
    response = http_client.post(f"{route}-stream", **asked)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(one.removeprefix("data:")) for one in response.text.splitlines() if one]
    outputs = [event["output"] for event in events]
    assert "".join(output["text"] for output in outputs) == whole["text"]
    assert [output["finished"] for output in outputs] == [False, False, True]
    assert outputs[-1]["num_prompt_tokens"] == whole["num_prompt_tokens"]


def test_refusals_are_errors_that_the_client_knows(http_client: httpx.Client) -> None:
    for route in ("/v1/llm/completions-sync", "/v1/llm/completions-stream"):
        wrong = {"params": MODEL, "json": PROMPT | {"temperature": 2}}
        status, detail = refused(http_client.post(route, **wrong))
        assert (status, "temperature" in detail) == (400, True)
    models = "/v1/llm/model-endpoints"
    assert answered(http_client.get(f"{models}/tiny/demo"))["status"] == "READY"
    assert refused(http_client.get(f"{models}/other"))[0] == 404
    assert refused(http_client.put(f"{models}/demo", json={"labels": None}))[0] == 400
    status, detail = refused(http_client.put("/v1/llm/fine-tunes/ft-1/cancel"))
    assert (status, "fine-tuning job" in detail) == (404, True)


@pytest.fixture
def _classes(make_endpoint: LocalEndpoint) -> Iterator[None]:
    configure("local", ACCOUNT, make_endpoint.api_url)
    yield
    configure()


@pytest.mark.usefixtures("_classes")
def test_completions_of_our_classes_are_the_same_whole_and_streamed() -> None:
    asked: dict[str, Any] = {"model": "demo", "prompt": "Once", "max_new_tokens": 3}
    asked["temperature"] = 0.0
    whole: Any = Completion.create(**asked)
    assert whole.output.num_completion_tokens == 3
    streamed: Any = Completion.create(**asked, stream=True)
    assert "".join(event.output.text for event in streamed) == whole.output.text

    async def texts() -> tuple[str, str]:
        answer: Any = await Completion.acreate(**asked)
        events: Any = await Completion.acreate(**asked, stream=True)
        return answer.output.text, "".join([event.output.text async for event in events])

    assert asyncio.run(texts()) == (whole.output.text,) * 2
    with pytest.raises(errors.NotFoundError):
        Completion.create(**{**asked, "model": "missing"})


@pytest.mark.usefixtures("_classes")
def test_files_models_and_fine_tunes_of_our_classes_are_typed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,response\nä,b\n")
    with (tmp_path / "a.csv").open("rb") as file:
        id = File.upload(file).id
    assert File.download(id).content == "prompt,response\nä,b\n"
    assert id in [file.id for file in File.list().files]
    assert File.delete(id).deleted
    with pytest.raises(errors.NotFoundError):
        File.get(id)
    assert Model.get("demo").inference_framework == "vllm"
    with pytest.raises(errors.BadRequestError, match="base model"):
        Model.delete("demo")
    assert isinstance(FineTune.list().jobs, list)


@pytest.mark.usefixtures("_classes")
@pytest.mark.parametrize("use_v2", [False, True])
def test_batches_of_our_classes_run_by_themselves(use_v2: bool) -> None:
    chats = [FilteredChatCompletionV2Request(messages=[{"role": "user", "content": "Hi"}])]
    prompts = CreateBatchCompletionsRequestContent(prompts=["a", "b"], max_new_tokens=3)
    created = Completion.batch_create(
        f"out/classes-{use_v2}.json",
        CreateBatchCompletionsModelConfig(model="demo"),
        chats if use_v2 else prompts,
        use_v2=use_v2,
    )

    def status() -> str:
        found: str = Completion.get_batch_completion(created.job_id)["job"]["status"]
        return found

    wait_until(lambda: status() not in RUNS)
    assert status() == "completed"
