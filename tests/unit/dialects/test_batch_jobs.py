"""Jobs that run batches: what is refused, and how the lines of a batch go the OpenAI path."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support.batches import as_text, lines, results
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, chat, replying, tokens

from worker.long_work.kinds import LongWork


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller whose volume has a file, and links that lead out of it or to what is private."""
    root = tmp_path / "volume"
    (root / "inbox").mkdir(parents=True)
    (root / "inbox" / "a.jsonl").write_bytes(as_text(lines(1)))
    (root / "inbox" / "leak").symlink_to(tmp_path / "secret")
    (root / "inbox" / "mine").symlink_to(root / "worker")
    engine.script = tuple(tokens("a"))
    return Caller(engine, root)


# unit/job has what is no batch, unit/volume the other paths.
@pytest.mark.parametrize(
    ("spec", "param", "says"),
    [
        ({"input_path": "inbox/a.jsonl", "endpoint": "/score"}, "endpoint", "that demo can do"),
        ({"input_path": "inbox/leak"}, "input_path", "out of the volume"),
        ({"input_path": "inbox/mine/batches"}, "input_path", "callers' paths are below"),
        ({"input_path": "inbox/A.jsonl"}, "input_path", "no such file"),
        ({"input_path": "\ud800.jsonl"}, "input_path", "leads to nothing"),
    ],
)
async def test_a_job_that_is_refused_leaves_nothing_and_names_no_path_of_the_machine(
    caller: Caller, spec: dict[str, Any], param: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(caller.root.rglob("*"))
    error = await caller.refused_job(batch={"endpoint": CHAT, **spec})
    assert (error["code"], error["param"]) == (400, param)
    assert says in error["message"]
    assert str(caller.root.parent) not in json.dumps(error)
    assert (caller.engine.asked, sorted(caller.root.rglob("*"))) == ([], before)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def batch_of(caller: Caller, **spec: Any) -> dict[str, Any]:
    batch: dict[str, Any] = (await caller.job(batch={"endpoint": CHAT, **spec}))["batch"]
    return batch


@pytest.mark.parametrize("endpoint", ["/score", "/v1/score"])
async def test_an_endpoint_without_v1_is_taken_with_it_too(caller: Caller, endpoint: str) -> None:
    caller.engine.app = replying('{"data": []}')
    caller.engine.bodies = {"/score": frozenset({"text_1"})}
    requests = lines(2, endpoint=endpoint, text_1="a")
    batch = await batch_of(caller, requests=requests, endpoint=endpoint)
    assert batch["request_counts"]["completed"] == 2


async def test_an_answer_that_no_yield_could_hold_is_fine_in_a_batch(caller: Caller) -> None:
    long = "a" * 1_100_000
    caller.engine.script = tuple(tokens(long))
    assert (await caller.refused_job(**chat(stream=False)))["code"] == 413
    output, _ = results(caller.root, await batch_of(caller, requests=lines(1)))
    assert output["c0"]["response"]["body"]["choices"][0]["message"]["content"] == long


@pytest.mark.parametrize(
    ("by_priority", "expected"), [(True, {"c0": 100, "c1": 7}), (False, {"c0": None})]
)
async def test_where_the_engine_computes_by_priority_lines_come_after_callers(
    caller: Caller, by_priority: bool, expected: dict[str, int | None]
) -> None:
    requests = lines(2)
    requests[1]["body"]["priority"] = 7
    caller.engine.model = dataclasses.replace(caller.engine.model, by_priority=by_priority)
    caller.engine.bodies = {CHAT: frozenset({*(caller.engine.bodies[CHAT]), "priority"})}
    batch = await batch_of(caller, requests=requests)
    bodies = [asked for asked in caller.engine.asked if isinstance(asked, dict)]
    assert {one["messages"][0]["content"]: one.get("priority") for one in bodies} == expected
    # A priority of the caller's own that has no effect is refused, as anywhere else.
    assert batch["request_counts"]["failed"] == 2 - len(expected)


async def test_a_line_that_holds_too_much_is_refused_and_others_answered(caller: Caller) -> None:
    requests = lines(2)
    requests[0]["body"]["messages"] *= 11
    (caller.root / "inbox" / "b.jsonl").write_bytes(as_text(requests))
    bounded = Caller(caller.engine, caller.root, MAX_INPUT_ITEMS="10")
    batch = await batch_of(bounded, input_path="inbox/b.jsonl")
    output, errors = results(caller.root, batch)
    assert list(output) == ["c1"]
    assert "MAX_INPUT_ITEMS" in errors["c0"]["response"]["body"]["error"]["message"]
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}


async def test_the_answer_counts_the_tokens_and_says_nothing_of_a_next_job_at_the_end(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caller.engine.counted = (3, 2)
    assert list(await caller.job(batch={"requests": lines(4), "endpoint": CHAT})) == ["batch"]
    (text,) = [one.getMessage() for one in caplog.records if one.name == "worker.record"]
    assert "route=batch status=200 prompt_tokens=12 output_tokens=8" in text


@pytest.mark.parametrize("starts", [True, False])
async def test_a_job_out_of_time_sends_the_next_or_names_it(caller: Caller, starts: bool) -> None:
    caller = Caller(caller.engine, caller.root, starts)
    left = await caller.job(batch={"requests": lines(1), "endpoint": CHAT, "max_runtime_sec": 1})
    id = left["batch"]["id"]
    assert caller.started == [LongWork("batch", id)]
    assert ("run_with" in left) == (not starts)
    whole = await caller.job(batch={"id": id})
    assert (whole["batch"]["status"], len(caller.started)) == ("completed", 1)
