"""LLM Engine's batches, from the request to the array on the volume."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.caller import Caller
from support.engine.scripted import ScriptedEngine

from worker.batches.lines import BatchPlan, make_mistake
from worker.batches.record import CANCEL, PLAN, BatchEnding, Batches, BatchResult
from worker.dialects.llm_engine.batches import job_object
from worker.long_work.records import DECISION, RESULT, TimedModel

V1 = "/v1/llm/batch-completions"
V2 = "/v2/batch-completions"
SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
REQUEST: dict[str, Any] = {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
BODY: dict[str, Any] = {**REQUEST, "content": [CHAT]}
PROMPTS = {"content": {"prompts": ["a"], **SHARED}}


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller whose engine answers each prompt with itself, but refuses the prompt "refused"."""

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "parent": None}]})

    async def complete(request: Request) -> Response:
        body = await request.json()
        engine.requests.append(body)
        if body.get("prompt") == "refused":
            return JSONResponse({"error": {"message": "too long", "code": 400}}, 400)
        choice = {"index": 0, "text": body.get("prompt"), "logprobs": None}
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return JSONResponse({"choices": [choice], "usage": usage})

    posts = [
        Route(f"/v1/{path}", complete, methods=["POST"])
        for path in ("completions", "chat/completions")
    ]
    engine.app = Starlette(routes=[Route("/v1/models", models), *posts])
    engine.adapters = ["tuned"]
    return Caller(engine, tmp_path)


async def run_batch(caller: Caller, response: dict[str, Any]) -> dict[str, Any]:
    """Run the job that the response names, and return the job object of LLM Engine."""
    await caller.run_job(**response["run_with"]["input"])
    job: dict[str, Any] = (await caller.get(f"{V2}/{response['job_id']}"))["job"]
    return job


def output_path(caller: Caller) -> Path:
    """Return the path of a batch's array."""
    return caller.root / "out" / "a.json"


def request_bodies(engine: ScriptedEngine) -> list[dict[str, Any]]:
    return [request for request in engine.requests if isinstance(request, dict)]


async def create_batch(caller: Caller, job_id: str = "", /, **changes: Any) -> Any:
    return await caller.run_job(job_id, route=V2, method="POST", body={**BODY, **changes})


async def test_v1_writes_one_array_in_the_order_of_the_prompts(caller: Caller) -> None:
    content = {"prompts": ["a", "refused", "b"], **SHARED}
    response = await caller.post(V1, **REQUEST, content=content)
    assert response.keys() == {"job_id", "run_with"}
    job = await run_batch(caller, response)
    assert job["status"] == "completed"
    assert job["metadata"].keys() == {"output_file_id", "error_file_id"}
    counted = {"num_prompt_tokens": 2, "num_completion_tokens": 3}
    results = [{"text": "a", **counted}, None, {"text": "b", **counted}]
    assert json.loads(output_path(caller).read_bytes()) == results


async def test_v2_writes_bodies_and_errors_in_the_order_of_the_requests(caller: Caller) -> None:
    (caller.root / "inbox").mkdir()
    requests = json.dumps([{"prompt": "a"}, {"prompt": "refused"}], indent=1)
    (caller.root / "inbox" / "in.json").write_text(requests)
    response = await caller.post(V2, **REQUEST, input_data_path="inbox/in.json", priority="high")
    assert (response["status"], response["input_data_path"]) == ("queued", "inbox/in.json")
    job = await run_batch(caller, response)
    assert (job["status"], job["priority"]) == ("completed", "high")
    first, second = json.loads(output_path(caller).read_bytes())
    assert first["choices"][0]["text"] == "a"
    assert second["error"]["message"] == "too long"
    assert {body["model"] for body in request_bodies(caller.engine)} == {"demo"}


async def test_jobs_that_share_a_batch_write_one_array_in_order(caller: Caller) -> None:
    prompts = [f"p{number}" for number in range(60)]
    content = {"prompts": prompts, **SHARED}
    response = await caller.post(V1, **REQUEST, content=content, data_parallelism=3)
    await asyncio.gather(*(caller.run_job(**response["run_with"]["input"]) for _ in range(3)))
    assert [item["text"] for item in json.loads(output_path(caller).read_bytes())] == prompts


async def test_a_repeated_request_returns_the_same_batch(caller: Caller) -> None:
    first, again = [(await create_batch(caller, "a"))["job_id"] for _ in range(2)]
    assert first == again != (await create_batch(caller, "b", output_data_path="out/b"))["job_id"]


async def test_a_batch_for_an_adapter_is_answered_by_the_adapter(caller: Caller) -> None:
    content = [{**CHAT, "model": "demo"}]
    await run_batch(
        caller, await create_batch(caller, model_config={"model": "tuned"}, content=content)
    )
    assert [request["model"] for request in request_bodies(caller.engine)] == ["tuned"]


async def test_a_batch_expires_after_max_runtime_sec(caller: Caller) -> None:
    response = await create_batch(caller, max_runtime_sec=90)
    batch = await caller.get(f"/v1/batches/{response['job_id']}")
    assert batch["expires_at"] - batch["created_at"] == 90


# One mistake of each kind; test_batch_inputs covers the others.
@pytest.mark.parametrize(
    ("route", "body", "param", "code"),
    [
        (V1, {**PROMPTS, "tool_config": {"name": "x"}}, "tool_config", 400),
        (V1, {"content": {"prompts": ["a", 1], **SHARED}}, "content.prompts.1", 400),
        (V1, {"input_data_path": "file-" + "a" * 24}, "id", 404),
        (V1, {"input_data_path": "../x"}, "input_data_path", 400),
        (V2, {"content": [{"input": "a"}]}, "endpoint", 400),
        (V2, {**BODY, "output_data_path": "../x"}, "output_data_path", 400),
        (V2, {**BODY, "model_config": {"model": "other"}}, "model_config.model", 400),
    ],
)
async def test_a_refused_batch_writes_no_file(
    caller: Caller, route: str, body: dict[str, Any], param: str, code: int
) -> None:
    known = caller.engine.bodies.items()
    caller.engine.bodies = {path: keys for path, keys in known if "responses" not in path}
    error = await caller.request_error("POST", route, **{**REQUEST, **body})
    assert (error["code"], error["param"]) == (code, param)
    assert str(caller.root) not in error["message"]
    assert not [path for path in caller.root.rglob("*") if path.is_file()]


async def test_keys_without_effect_are_logged_and_returned_in_the_metadata(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        response = await create_batch(caller, gpus=2, labels={"team": "a"})
    without_effect = "gpus: the endpoint's settings decide"
    assert response["metadata"] == {"team": "a", "without_effect": without_effect}
    assert "these parameters have no effect: gpus" in caplog.text


async def test_large_requests_do_not_make_the_list_of_batches_large(caller: Caller) -> None:
    config = {"model": "demo", "checkpoint_path": "a" * 1_000_000, "b" * 256: 1}
    labels = {f"{number:064}": "é" * 512 for number in range(16)}
    for number in range(30):
        path = f"out/{('a' * 200 + '/') * 15}{number}"
        response = await create_batch(
            caller, model_config=config, labels=labels, output_data_path=path
        )
    request = caller.root / "worker" / "batches" / response["job_id"] / "request.json"
    assert request.stat().st_size < 50_000
    batch_list = await caller.get(V2)
    assert 0 < len(batch_list["jobs"]) <= 30
    assert len(json.dumps(batch_list)) < 1_000_000


async def test_a_priority_can_be_changed_later(caller: Caller) -> None:
    route = f"{V2}/{(await create_batch(caller, priority='low'))['job_id']}"
    updated = await caller.post(route, priority="high")
    assert (updated["success"], updated["priority"]) == (True, "high")
    assert (await caller.get(route))["job"]["priority"] == "high"
    assert (await caller.request_error("POST", route, priority=1))["param"] == "priority"


@pytest.mark.parametrize(("has_priorities", "sent"), [(True, [-3]), (False, [None])])
async def test_a_numeric_priority_is_passed_to_the_lines_if_the_scheduler_has_priorities(
    caller: Caller, has_priorities: bool, sent: list[int | None]
) -> None:
    caller.engine.model = replace(caller.engine.model, has_priorities=has_priorities)
    await run_batch(caller, await create_batch(caller, priority="-3"))
    assert [request.get("priority") for request in request_bodies(caller.engine)] == sent


async def test_a_batch_is_cancelled_once_and_writes_no_array(caller: Caller) -> None:
    route = f"{V2}/{(await create_batch(caller))['job_id']}"
    assert await caller.post(f"{route}/actions/cancel") == {"success": True}
    assert (await caller.get(route))["job"]["status"] == "cancelled"
    assert await caller.post(f"{route}/actions/cancel") == {"success": False}
    # Without a plan the number of requests is unknown, so no array is written.
    assert [*output_path(caller).parent.iterdir()] == []


async def test_the_list_has_only_batches_of_llm_engine(caller: Caller) -> None:
    response = await create_batch(caller)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    openai_response = await caller.run_job(
        batch={"requests": [line], "endpoint": "/v1/completions"}
    )
    assert [job["job_id"] for job in (await caller.get(V2))["jobs"]] == [response["job_id"]]
    assert (await caller.request_error("GET", f"{V2}/{openai_response['batch']['id']}"))[
        "code"
    ] == 404


# Outputs (test_batch_output covers how they are reserved, written and released):


async def test_a_second_batch_with_the_same_output_is_refused(caller: Caller) -> None:
    response = await create_batch(caller)
    # It is refused before and after the first batch has ended, with any spelling of the path.
    body = {**BODY, "output_data_path": "./out//a.json"}
    assert (await caller.request_error("POST", V2, **body))["code"] == 409
    assert (await run_batch(caller, response))["status"] == "completed"
    content = output_path(caller).read_bytes()
    error = await caller.request_error("POST", V2, **body)
    assert (error["code"], error["param"]) == (409, "output_data_path")
    assert (output_path(caller).read_bytes(), len((await caller.get(V2))["jobs"])) == (content, 1)


async def test_a_batch_does_not_overwrite_a_file_of_others_and_keeps_its_results(
    caller: Caller,
) -> None:
    response = await create_batch(caller)
    output_path(caller).write_bytes(b"another's")
    job = await run_batch(caller, response)
    assert job["status"] == "failed"
    assert job["metadata"]["error"].startswith("output_data_path: out/a.json: ")
    results = await caller.get(f"/v1/files/{job['metadata']['output_file_id']}/content")
    assert "custom_id" in results
    assert output_path(caller).read_bytes() == b"another's"


async def test_a_batch_whose_input_was_deleted_releases_its_output(caller: Caller) -> None:
    response = await create_batch(caller)
    (content,) = (caller.root / "worker" / "files").glob("*/content")
    content.unlink()
    assert (await run_batch(caller, response))["status"] == "failed"
    assert not output_path(caller).exists()


ONE_LINE_PLAN = BatchPlan(total=1, shards=(), size=1, mtime_ns=1, made_at=1)
EXPIRED_ENDING = BatchEnding(status="expired", at=1, output_file_id="a", error_file_id="b", cut={})
ENDED_AT = 1_700_000_001
MISTAKES = [make_mistake("a", "broken")]


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        (PLAN, ONE_LINE_PLAN, "running"),
        (CANCEL, TimedModel(at=1), "running"),
        (DECISION, EXPIRED_ENDING, "running"),
        (
            RESULT,
            BatchResult(status="completed", at=ENDED_AT, output_file_id="file-1"),
            "completed",
        ),
        (RESULT, BatchResult(status="expired", at=ENDED_AT), "failed"),
        (RESULT, BatchResult(status="cancelled", at=ENDED_AT), "cancelled"),
        (RESULT, BatchResult(status="failed", at=ENDED_AT, mistakes=MISTAKES), "failed"),
    ],
)
async def test_a_batch_is_described_with_llm_engines_statuses(
    caller: Caller, name: str, content: BaseModel, status: str
) -> None:
    response = await create_batch(caller, labels={"team": "a"})
    del response["run_with"]
    assert (response["status"], response["completed_at"]) == ("queued", None)
    batch = Batches(caller.settings).get(response["job_id"])
    batch.write_file(name, content)
    completed_at = "2023-11-14T22:13:21+00:00" if name == RESULT else None
    notes = {"output_file_id": "file-1"} if status == "completed" else {}
    notes |= {"error": "broken"} if "broken" in content.model_dump_json() else {}
    changes = {"status": status, "completed_at": completed_at, "metadata": {"team": "a", **notes}}
    assert job_object(batch) == {**response, **changes}
