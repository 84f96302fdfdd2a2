"""Jobs that run batches: refused jobs, and lines that run as requests of the OpenAI path."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.batches import line, lines, results, to_jsonl
from support.caller import Caller
from support.engine.scripted import (
    CHAT,
    SECONDS_PER_TOKEN,
    ScriptedEngine,
    chat_job,
    static_app,
    tokens,
)
from support.processes.background import poll_until
from support.volume import read_receipts

from worker.limits import inputs
from worker.long_work.records import WorkReference


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller whose volume has a file, and links out of the volume and to private files."""
    root = tmp_path / "volume"
    (root / "inbox").mkdir(parents=True)
    (root / "inbox" / "a.jsonl").write_bytes(to_jsonl(lines(1)))
    (root / "inbox" / "leak").symlink_to(tmp_path / "secret")
    (root / "inbox" / "mine").symlink_to(root / "worker")
    engine.script = tuple(tokens("a"))
    return Caller(engine, root)


# tests/unit/job covers inputs that are no batch, tests/unit/volume all other paths.
@pytest.mark.parametrize(
    ("spec", "param", "says"),
    [
        (
            {"input_path": "inbox/a.jsonl", "endpoint": "/score"},
            "endpoint",
            "demo can't answer this route",
        ),
        ({"input_path": "inbox/leak"}, "input_path", "out of the volume"),
        ({"input_path": "inbox/mine/batches"}, "input_path", "callers' paths are below"),
        ({"input_path": "inbox/A.jsonl"}, "input_path", "no such file"),
        ({"input_path": "\ud800.jsonl"}, "input_path", "no control characters"),
    ],
)
async def test_a_refused_job_writes_no_file_and_its_error_has_no_path_of_the_machine(
    caller: Caller, spec: dict[str, Any], param: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(caller.root.rglob("*"))
    error = await caller.job_error(batch={"endpoint": CHAT, **spec})
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert str(caller.root.parent) not in json.dumps(error)
    assert (caller.engine.requests, sorted(caller.root.rglob("*"))) == ([], before)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def run_batch(caller: Caller, **spec: Any) -> dict[str, Any]:
    batch: dict[str, Any] = (await caller.run_job(batch={"endpoint": CHAT, **spec}))["batch"]
    return batch


@pytest.mark.parametrize("endpoint", ["/score", "/v1/score"])
async def test_an_endpoint_is_accepted_with_and_without_v1(caller: Caller, endpoint: str) -> None:
    caller.engine.app = static_app('{"data": []}')
    caller.engine.bodies = {"/score": frozenset({"text_1"})}
    requests = lines(2, endpoint=endpoint, text_1="a")
    batch = await run_batch(caller, requests=requests, endpoint=endpoint)
    assert batch["request_counts"]["completed"] == 2


async def test_a_batch_may_have_a_response_that_is_too_large_for_a_result(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.app.RESULT_LIMIT_BYTES", 1_200_000)
    long = "a" * 1_300_000
    caller.engine.script = tuple(tokens(long))
    assert (await caller.job_error(**chat_job(stream=False)))["code"] == 413
    output, _ = results(caller.root, await run_batch(caller, requests=lines(1)))
    assert output["c0"]["response"]["body"]["choices"][0]["message"]["content"] == long


@pytest.mark.parametrize(
    ("has_priorities", "expected"),
    [(True, {"c0": 100, "c1": 7}), (False, {"c0": None, "c1": None})],
)
async def test_an_engine_with_priorities_runs_lines_after_callers_requests(
    caller: Caller, has_priorities: bool, expected: dict[str, int | None]
) -> None:
    requests = lines(2)
    requests[1]["body"]["priority"] = 7
    caller.engine.model = dataclasses.replace(caller.engine.model, has_priorities=has_priorities)
    caller.engine.bodies = {CHAT: frozenset({*(caller.engine.bodies[CHAT]), "priority"})}
    batch = await run_batch(caller, requests=requests)
    sent = [request for request in caller.engine.requests if isinstance(request, dict)]
    assert {body["messages"][0]["content"]: body.get("priority") for body in sent} == expected
    assert batch["request_counts"]["failed"] == 0


async def test_a_line_above_a_limit_is_refused_and_the_others_are_answered(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = lines(2)
    requests[0]["body"]["messages"] *= 11
    monkeypatch.setattr(inputs, "MAX_VALUES", 30)
    (caller.root / "inbox" / "b.jsonl").write_bytes(to_jsonl(requests))
    batch = await run_batch(caller, input_path="inbox/b.jsonl")
    output, errors = results(caller.root, batch)
    assert list(output) == ["c1"]
    assert "more than 30 values" in errors["c0"]["response"]["body"]["error"]["message"]
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}


async def test_a_finished_batch_names_no_next_job_and_its_log_line_counts_tokens(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caller.engine.token_counts = (3, 2)
    assert list(await caller.run_job(batch={"requests": lines(4), "endpoint": CHAT})) == ["batch"]
    (text,) = [record.getMessage() for record in caplog.records if record.name == "worker.record"]
    assert "route=batch status=200 prompt_tokens=12 output_tokens=8" in text


@pytest.mark.parametrize("can_start_jobs", [True, False])
async def test_a_job_out_of_time_starts_or_names_the_job_that_continues(
    caller: Caller, can_start_jobs: bool
) -> None:
    caller = Caller(caller.engine, caller.root, can_start_jobs)
    first_response = await caller.run_job(
        batch={"requests": lines(1), "endpoint": CHAT, "max_runtime_sec": 1}
    )
    id = first_response["batch"]["id"]
    assert caller.started_work == [WorkReference("batch", id)]
    assert ("run_with" in first_response) == (not can_start_jobs)
    second_response = await caller.run_job(batch={"id": id})
    assert (second_response["batch"]["status"], len(caller.started_work)) == ("completed", 1)


async def test_each_line_has_a_receipt_with_the_names_of_the_batch_and_its_own(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    caller = Caller(engine, tmp_path, RECEIPTS="1")
    engine.script = tuple(tokens("a", "b"))
    requests = [line("c0"), line("c1"), line("c2")]
    requests[1]["body"] |= {"user": "alice", "metadata": {"team": "b", "day": "1"}}
    requests[2]["body"]["receipt"] = True
    spec = {"endpoint": CHAT, "requests": requests, "metadata": {"team": "a"}}
    answer = await caller.run_job(batch=spec, receipt=True)
    batch = answer["batch"]
    output, _ = results(tmp_path, batch)
    await poll_until(lambda: len(read_receipts(tmp_path)) == len(requests))
    receipts = {receipt["id"]: receipt for receipt in read_receipts(tmp_path)}
    lines_receipts = [receipts.pop(output[name]["response"]["request_id"]) for name in output]
    assert receipts == {}
    assert {receipt["batch"] for receipt in lines_receipts} == {batch["id"]}
    assert {receipt["route"] for receipt in lines_receipts} == {CHAT}
    assert [receipt["labels"] for receipt in lines_receipts] == [
        {"team": "a"},
        {"team": "b", "day": "1"},
        {"team": "a"},
    ]
    assert [receipt.get("user") for receipt in lines_receipts] == [None, "alice", None]
    bodies = [output[name]["response"]["body"] for name in output]
    assert [body.get("receipt") for body in bodies] == [None, None, lines_receipts[2]]
    # The job's own receipt is the sum, and is in no file.
    whole = answer["receipt"]
    assert (whole["route"], whole["gpu_seconds"]) == ("batch", 3 * 2 * SECONDS_PER_TOKEN)
    assert whole["tokens"]["completion"] == 6
