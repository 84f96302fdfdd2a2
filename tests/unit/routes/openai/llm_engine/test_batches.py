"""LLM Engine's batches, from the request to the array on the volume."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, refused
from support.engine.scripted import ScriptedEngine
from support.llm_engine_batches import (
    ASKED,
    BODY,
    CHAT,
    REFUSED,
    SHARED,
    V1,
    V2,
    get,
    post,
    refusal,
    run,
)

from worker.app import Worker


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
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "in.json").write_text(
        json.dumps([{"prompt": "a"}, {"prompt": REFUSED}], indent=1)
    )
    created = await post(worker, V2, **ASKED, input_data_path="inbox/in.json", priority="high")
    assert (created["status"], created["input_data_path"]) == ("queued", "inbox/in.json")
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
    other = await post(worker, V1, "job-2", **(body | {"output_data_path": "out/b.json"}))
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


async def test_a_large_request_leaves_everybodys_list_small(worker: Worker, tmp_path: Path) -> None:
    config = {"model": "demo", "checkpoint_path": "a" * 1_000_000, "b" * 256: 1}
    labels = {f"{number:064}": "é" * 512 for number in range(16)}
    for number in range(30):
        output = f"out/{'./' * 2_000}{number}"
        body = {**BODY, "model_config": config, "labels": labels, "output_data_path": output}
        created = await post(worker, V2, f"job-{number}", **body)
    request = tmp_path / "worker" / "batches" / created["job_id"] / "request.json"
    assert request.stat().st_size < 50_000
    listed = await get(worker, V2)
    assert 0 < len(listed["jobs"]) <= 30
    assert len(json.dumps(listed)) < 1_000_000


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
    assert [*(tmp_path / "out").iterdir()] == []


async def test_the_list_has_the_jobs_of_llm_engine_only(worker: Worker) -> None:
    created = [
        (
            await post(
                worker,
                V2,
                f"job-{number}",
                **ASKED | {"output_data_path": f"out/{number}"},
                content=[CHAT],
            )
        )["job_id"]
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
