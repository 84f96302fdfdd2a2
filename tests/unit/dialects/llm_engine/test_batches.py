"""LLM Engine's batches, from the request to the array on the volume."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.caller import Caller
from support.engine.scripted import ScriptedEngine

from worker.batches.lines import Plan, mistake
from worker.batches.record import CANCEL, PLAN, BatchEnding, BatchResult
from worker.batches.store import Batches
from worker.dialects.llm_engine.batches import job
from worker.long_work.record import DECISION, RESULT, Moment

V1 = "/v1/llm/batch-completions"
V2 = "/v2/batch-completions"
SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
ASKED: dict[str, Any] = {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
BODY: dict[str, Any] = {**ASKED, "content": [CHAT]}
PROMPTS = {"content": {"prompts": ["a"], **SHARED}}


async def run(caller: Caller, created: dict[str, Any]) -> dict[str, Any]:
    """Run a batch by the job that the answer names, and return LLM Engine's."""
    await caller.job(**created["run_with"]["input"])
    job: dict[str, Any] = (await caller.get(f"{V2}/{created['job_id']}"))["job"]
    return job


def output_of(caller: Caller) -> Path:
    """Return where the array of a batch is written."""
    return caller.root / "out" / "a.json"


def bodies(engine: ScriptedEngine) -> list[dict[str, Any]]:
    return [asked for asked in engine.asked if isinstance(asked, dict)]


async def posted(caller: Caller, job_id: str = "", /, **changes: Any) -> Any:
    return await caller.job(job_id, route=V2, method="POST", body={**BODY, **changes})


async def test_v1_writes_one_array_in_the_order_of_the_prompts(caller: Caller) -> None:
    content = {"prompts": ["a", "refused", "b"], **SHARED}
    created = await caller.post(V1, **ASKED, content=content)
    assert created.keys() == {"job_id", "run_with"}
    job = await run(caller, created)
    assert job["status"] == "completed"
    assert job["metadata"].keys() == {"output_file_id", "error_file_id"}
    counted = {"num_prompt_tokens": 2, "num_completion_tokens": 3}
    answers = [{"text": "a", **counted}, None, {"text": "b", **counted}]
    assert json.loads(output_of(caller).read_bytes()) == answers


async def test_v2_writes_bodies_and_errors_in_the_order_of_the_requests(caller: Caller) -> None:
    (caller.root / "inbox").mkdir()
    requests = json.dumps([{"prompt": "a"}, {"prompt": "refused"}], indent=1)
    (caller.root / "inbox" / "in.json").write_text(requests)
    created = await caller.post(V2, **ASKED, input_data_path="inbox/in.json", priority="high")
    assert (created["status"], created["input_data_path"]) == ("queued", "inbox/in.json")
    job = await run(caller, created)
    assert (job["status"], job["priority"]) == ("completed", "high")
    first, second = json.loads(output_of(caller).read_bytes())
    assert first["choices"][0]["text"] == "a"
    assert second["error"]["message"] == "too long"
    assert {body["model"] for body in bodies(caller.engine)} == {"demo"}


async def test_jobs_that_share_a_batch_make_one_array_in_its_order(caller: Caller) -> None:
    prompts = [f"p{number}" for number in range(60)]
    content = {"prompts": prompts, **SHARED}
    created = await caller.post(V1, **ASKED, content=content, data_parallelism=3)
    await asyncio.gather(*(caller.job(**created["run_with"]["input"]) for _ in range(3)))
    assert [item["text"] for item in json.loads(output_of(caller).read_bytes())] == prompts


async def test_a_request_that_comes_again_has_the_same_batch(caller: Caller) -> None:
    first, again = [(await posted(caller, "a"))["job_id"] for _ in range(2)]
    assert first == again != (await posted(caller, "b", output_data_path="out/b"))["job_id"]


async def test_a_batch_of_an_adapter_is_answered_by_it(caller: Caller) -> None:
    content = [{**CHAT, "model": "demo"}]
    await run(caller, await posted(caller, model_config={"model": "tuned"}, content=content))
    assert [asked["model"] for asked in bodies(caller.engine)] == ["tuned"]


async def test_the_time_to_the_end_is_what_was_asked_to_the_second(caller: Caller) -> None:
    created = await posted(caller, max_runtime_sec=90)
    batch = await caller.get(f"/v1/batches/{created['job_id']}")
    assert batch["expires_at"] - batch["created_at"] == 90


# One mistake of each kind: the tests of requests and inputs have the others.
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
async def test_what_is_refused_leaves_nothing(
    caller: Caller, route: str, body: dict[str, Any], param: str, code: int
) -> None:
    known = caller.engine.bodies.items()
    caller.engine.bodies = {path: keys for path, keys in known if "responses" not in path}
    error = await caller.refused("POST", route, **{**ASKED, **body})
    assert (error["code"], error["param"]) == (code, param)
    assert str(caller.root) not in error["message"]
    assert not [path for path in caller.root.rglob("*") if path.is_file()]


async def test_what_has_no_effect_is_said(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        created = await posted(caller, gpus=2, labels={"team": "a"})
    without_effect = "gpus: the endpoint's settings decide"
    assert created["metadata"] == {"team": "a", "without_effect": without_effect}
    assert "no effect on an endpoint: gpus" in caplog.text


async def test_a_large_request_leaves_everybodys_list_small(caller: Caller) -> None:
    config = {"model": "demo", "checkpoint_path": "a" * 1_000_000, "b" * 256: 1}
    labels = {f"{number:064}": "é" * 512 for number in range(16)}
    for number in range(30):
        path = f"out/{'./' * 2_000}{number}"
        created = await posted(caller, model_config=config, labels=labels, output_data_path=path)
    request = caller.root / "worker" / "batches" / created["job_id"] / "request.json"
    assert request.stat().st_size < 50_000
    listed = await caller.get(V2)
    assert 0 < len(listed["jobs"]) <= 30
    assert len(json.dumps(listed)) < 1_000_000


async def test_a_priority_can_be_changed_later(caller: Caller) -> None:
    place = f"{V2}/{(await posted(caller, priority='low'))['job_id']}"
    updated = await caller.post(place, priority="high")
    assert (updated["success"], updated["priority"]) == (True, "high")
    assert (await caller.get(place))["job"]["priority"] == "high"
    assert (await caller.refused("POST", place, priority=1))["param"] == "priority"


@pytest.mark.parametrize(("by_priority", "sent"), [(True, [-3]), (False, [None])])
async def test_a_number_is_the_priority_of_the_lines_where_the_scheduler_has_one(
    caller: Caller, by_priority: bool, sent: list[int | None]
) -> None:
    caller.engine.model = replace(caller.engine.model, by_priority=by_priority)
    await run(caller, await posted(caller, priority="-3"))
    assert [asked.get("priority") for asked in bodies(caller.engine)] == sent


async def test_a_cancelled_batch_leaves_no_array_and_is_cancelled_once(caller: Caller) -> None:
    place = f"{V2}/{(await posted(caller))['job_id']}"
    assert await caller.post(f"{place}/actions/cancel") == {"success": True}
    assert (await caller.get(place))["job"]["status"] == "cancelled"
    assert await caller.post(f"{place}/actions/cancel") == {"success": False}
    # Nothing was planned yet: there is no number of requests.
    assert [*output_of(caller).parent.iterdir()] == []


async def test_the_list_has_the_jobs_of_llm_engine_only(caller: Caller) -> None:
    created = await posted(caller)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    openais = await caller.job(batch={"requests": [line], "endpoint": "/v1/completions"})
    assert [job["job_id"] for job in (await caller.get(V2))["jobs"]] == [created["job_id"]]
    assert (await caller.refused("GET", f"{V2}/{openais['batch']['id']}"))["code"] == 404


# Outputs: how they are reserved, written and released, test_batch_output has.


async def test_of_two_batches_with_one_output_the_second_is_refused(caller: Caller) -> None:
    created = await posted(caller)
    # However the second one writes the path, and before and after the first one has ended.
    body = {**BODY, "output_data_path": "./out//a.json"}
    assert (await caller.refused("POST", V2, **body))["code"] == 409
    assert (await run(caller, created))["status"] == "completed"
    written = output_of(caller).read_bytes()
    error = await caller.refused("POST", V2, **body)
    assert (error["code"], error["param"]) == (409, "output_data_path")
    assert (output_of(caller).read_bytes(), len((await caller.get(V2))["jobs"])) == (written, 1)


async def test_a_file_of_others_in_its_place_stays_and_the_answers_are_kept(caller: Caller) -> None:
    created = await posted(caller)
    output_of(caller).write_bytes(b"another's")
    job = await run(caller, created)
    assert job["status"] == "failed"
    assert job["metadata"]["error"].startswith("output_data_path: out/a.json: ")
    answers = await caller.get(f"/v1/files/{job['metadata']['output_file_id']}/content")
    assert "custom_id" in answers
    assert output_of(caller).read_bytes() == b"another's"


async def test_a_batch_whose_input_is_gone_leaves_its_output_to_others(caller: Caller) -> None:
    created = await posted(caller)
    (content,) = (caller.root / "worker" / "files").glob("*/content")
    content.unlink()
    assert (await run(caller, created))["status"] == "failed"
    assert not output_of(caller).exists()


PLANNED = Plan(total=1, shards=(), size=1, mtime_ns=1, made_at=1)
DECIDED = BatchEnding(status="expired", at=1, output_file_id="a", error_file_id="b", cut={})
ENDED = 1_700_000_001
BROKEN = [mistake("a", "broken")]


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        (PLAN, PLANNED, "running"),
        (CANCEL, Moment(at=1), "running"),
        (DECISION, DECIDED, "running"),
        (RESULT, BatchResult(status="completed", at=ENDED, output_file_id="file-1"), "completed"),
        (RESULT, BatchResult(status="expired", at=ENDED), "failed"),
        (RESULT, BatchResult(status="cancelled", at=ENDED), "cancelled"),
        (RESULT, BatchResult(status="failed", at=ENDED, mistakes=BROKEN), "failed"),
    ],
)
async def test_a_batch_is_described_in_llm_engines_words(
    caller: Caller, name: str, content: BaseModel, status: str
) -> None:
    created = await posted(caller, labels={"team": "a"})
    del created["run_with"]
    assert (created["status"], created["completed_at"]) == ("queued", None)
    batch = Batches(caller.settings).get(created["job_id"])
    batch.write(name, content)
    ended = "2023-11-14T22:13:21+00:00" if name == RESULT else None
    notes = {"output_file_id": "file-1"} if status == "completed" else {}
    notes |= {"error": "broken"} if "broken" in content.model_dump_json() else {}
    changes = {"status": status, "completed_at": ended, "metadata": {"team": "a", **notes}}
    assert job(batch) == {**created, **changes}
