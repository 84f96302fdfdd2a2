"""LLM Engine's batches, from the request to the array on the volume."""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.batches import answered, refused, worker_at
from support.engine.scripted import ScriptedEngine

from worker.app import Worker

V1 = "/v1/llm/batch-completions"
V2 = "/v2/batch-completions"
SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
ASKED: dict[str, Any] = {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
REFUSED = "refused"


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that answers prompts with themselves."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "parent": None}]})

    async def complete(request: Request) -> Response:
        body = await request.json()
        answering.asked.append(body)
        if body.get("prompt") == REFUSED:
            return JSONResponse({"error": {"message": "too long", "code": 400}}, 400)
        choice = {"index": 0, "text": body.get("prompt"), "logprobs": None}
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return JSONResponse({"choices": [choice], "usage": usage})

    routes = [
        Route("/v1/models", models),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/chat/completions", complete, methods=["POST"]),
    ]
    with ScriptedEngine(app=Starlette(routes=routes)) as answering:
        answering.adapters = ["tuned"]
        yield answering


@pytest.fixture
def worker(engine: ScriptedEngine, tmp_path: Path) -> Worker:
    return worker_at(tmp_path, engine)


async def post(worker: Worker, route: str, job_id: str = "job-1", **body: Any) -> Any:
    payload = {"route": route, "method": "POST", "body": body}
    return await answered(worker, payload, job_id)


async def refusal(worker: Worker, route: str, **body: Any) -> dict[str, Any]:
    return await refused(worker, {"route": route, "method": "POST", "body": body})


async def get(worker: Worker, route: str) -> Any:
    return await answered(worker, {"route": route, "method": "GET"})


async def run(worker: Worker, created: dict[str, Any]) -> dict[str, Any]:
    """Run a batch by the job that the answer tells, and return LLM Engine's."""
    await answered(worker, created["run_with"]["input"], "runner")
    job: dict[str, Any] = (await get(worker, f"{V2}/{created['job_id']}"))["job"]
    return job


async def test_v1_writes_one_array_in_the_order_of_the_prompts(
    worker: Worker, tmp_path: Path
) -> None:
    content = {"prompts": ["a", REFUSED, "b"], **SHARED}
    created = await post(worker, V1, **ASKED, content=content)
    assert created.keys() == {"job_id", "run_with"}
    job = await run(worker, created)
    assert job["status"] == "completed"
    assert job["metadata"].keys() == {"output_file_id", "error_file_id"}
    counted = {"num_prompt_tokens": 2, "num_completion_tokens": 3}
    assert json.loads((tmp_path / "out" / "a.json").read_bytes()) == [
        {"text": "a", **counted},
        None,
        {"text": "b", **counted},
    ]


async def test_v2_writes_bodies_and_errors_in_the_order_of_the_requests(
    worker: Worker, engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "in.json").write_text(json.dumps([{"prompt": "a"}, {"prompt": REFUSED}], indent=1))
    created = await post(worker, V2, **ASKED, input_data_path="in.json", priority="high")
    assert (created["status"], created["input_data_path"]) == ("queued", "in.json")
    job = await run(worker, created)
    assert (job["status"], job["priority"]) == ("completed", "high")
    first, second = json.loads((tmp_path / "out" / "a.json").read_bytes())
    assert first["choices"][0]["text"] == "a"
    assert second["error"]["message"] == "too long"
    assert {body["model"] for body in engine.asked if isinstance(body, dict)} == {"demo"}


async def test_jobs_that_share_a_batch_make_one_array_in_its_order(
    worker: Worker, tmp_path: Path
) -> None:
    prompts = [f"p{number}" for number in range(60)]
    content = {"prompts": prompts, **SHARED}
    created = await post(worker, V1, **ASKED, content=content, data_parallelism=3)
    runs = (answered(worker, created["run_with"]["input"], f"run-{number}") for number in range(3))
    await asyncio.gather(*runs)
    items = json.loads((tmp_path / "out" / "a.json").read_bytes())
    assert [item["text"] for item in items] == prompts


async def test_a_request_that_comes_again_has_the_same_batch(worker: Worker) -> None:
    body = {**ASKED, "content": {"prompts": ["a"], **SHARED}}
    first = await post(worker, V1, "job-1", **body)
    again = await post(worker, V1, "job-1", **body)
    other = await post(worker, V1, "job-2", **body)
    assert first["job_id"] == again["job_id"] != other["job_id"]


async def test_a_batch_of_an_adapter_is_answered_by_it(
    worker: Worker, engine: ScriptedEngine
) -> None:
    body = {**ASKED, "model_config": {"model": "tuned"}}
    await run(worker, await post(worker, V2, **body, content=[{**CHAT, "model": "demo"}]))
    assert [asked["model"] for asked in engine.asked if isinstance(asked, dict)] == ["tuned"]


async def test_the_time_to_the_end_is_what_was_asked_to_the_second(worker: Worker) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT], max_runtime_sec=90)
    batch = await get(worker, f"/v1/batches/{created['job_id']}")
    assert batch["expires_at"] - batch["created_at"] == 90


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (
            V1,
            {"content": {"prompts": ["a"], **SHARED}, "tool_config": {"name": "x"}},
            "tool_config",
        ),
        (V1, {"content": {"prompts": ["a", 1], **SHARED}}, "content.prompts.1"),
        (V1, {"input_data_path": "https://example.com/in.json"}, "input_data_path"),
        (V1, {"input_data_path": "none.json"}, "input_data_path"),
        (V2, {"content": [CHAT, {"prompt": "a"}]}, "content.1"),
        (V2, {"content": [{"input": "a"}]}, "endpoint"),
        (V2, {"content": [CHAT], "output_data_path": "../x"}, "output_data_path"),
        (V2, {"content": [CHAT], "model_config": {"model": "other"}}, "model_config.model"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    worker: Worker,
    engine: ScriptedEngine,
    tmp_path: Path,
    route: str,
    body: dict[str, Any],
    param: str,
) -> None:
    engine.bodies = {path: keys for path, keys in engine.bodies.items() if "responses" not in path}
    error = await refusal(worker, route, **{**ASKED, **body})
    assert (error["code"], error["param"]) == (400, param)
    assert str(tmp_path) not in error["message"]
    assert not [name for _, _, names in os.walk(tmp_path) for name in names]


async def test_what_is_on_the_volume_is_not_written_over(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("weights")
    body = {**ASKED, "output_data_path": "model.safetensors", "content": [CHAT]}
    assert (await refusal(worker, V2, **body))["param"] == "output_data_path"
    assert (tmp_path / "model.safetensors").read_text() == "weights"


async def test_a_file_that_is_not_there_is_not_found(worker: Worker) -> None:
    error = await refusal(worker, V1, **ASKED, input_data_path="file-" + "a" * 24)
    assert error["code"] == 404


async def test_what_is_the_endpoints_is_told_in_the_job_and_in_the_log(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        created = await post(worker, V2, **ASKED, content=[CHAT], gpus=2, labels={"team": "a"})
    told = {"team": "a", "without_effect": "gpus: the endpoint's settings decide"}
    assert created["metadata"] == told
    assert "no effect on an endpoint: gpus" in caplog.text


async def test_a_priority_that_comes_later_is_told_from_then_on(worker: Worker) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT], priority="low")
    place = f"{V2}/{created['job_id']}"
    updated = await post(worker, place, priority="high")
    assert (updated["success"], updated["priority"]) == (True, "high")
    assert (await get(worker, place))["job"]["priority"] == "high"
    assert (await refusal(worker, place, priority=1))["param"] == "priority"


@pytest.mark.parametrize(("by_priority", "sent"), [(True, [-3]), (False, [None])])
async def test_a_number_is_the_priority_of_the_lines_where_the_scheduler_has_one(
    worker: Worker, engine: ScriptedEngine, sent: list[int | None], *, by_priority: bool
) -> None:
    engine.model = replace(engine.model, by_priority=by_priority)
    await run(worker, await post(worker, V2, **ASKED, content=[CHAT], priority="-3"))
    assert [asked.get("priority") for asked in engine.asked if isinstance(asked, dict)] == sent


async def test_a_cancelled_batch_has_its_array_and_can_not_be_cancelled_again(
    worker: Worker, tmp_path: Path
) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT])
    place = f"{V2}/{created['job_id']}"
    assert await post(worker, f"{place}/actions/cancel") == {"success": True}
    assert (await get(worker, place))["job"]["status"] == "cancelled"
    assert await post(worker, f"{place}/actions/cancel") == {"success": False}
    # Nothing was planned yet: there is no number of requests.
    assert not (tmp_path / "out").exists()


async def test_the_list_has_the_jobs_of_llm_engine_only(worker: Worker) -> None:
    created = [
        (await post(worker, V2, f"job-{number}", **ASKED, content=[CHAT]))["job_id"]
        for number in range(2)
    ]
    spec = {
        "requests": [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}]
    }
    openais = await answered(worker, {"batch": {**spec, "endpoint": "/v1/completions"}}, "job-3")
    listed = (await get(worker, V2))["jobs"]
    assert sorted(job["job_id"] for job in listed) == sorted(created)
    error = await refused(worker, {"route": f"{V2}/{openais['batch']['id']}", "method": "GET"})
    assert error["code"] == 404


async def test_an_array_that_can_not_be_written_keeps_the_batch_from_completing(
    worker: Worker, tmp_path: Path
) -> None:
    created = await post(worker, V2, **ASKED, content=[CHAT])
    (tmp_path / "out" / "a.json").mkdir(parents=True)
    error = await refused(worker, created["run_with"]["input"], "runner")
    assert "output_data_path" in error["message"]
    assert (await get(worker, f"{V2}/{created['job_id']}"))["job"]["status"] == "running"
    (tmp_path / "out" / "a.json").rmdir()
    assert (await run(worker, created))["status"] == "completed"
