"""Requests to a worker about objects that are on another network volume of the endpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batches import lines, to_jsonl
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine, tokens
from support.fine_tunes import create_fine_tune

from worker.fine_tunes.record import FineTunes
from worker.long_work.records import WorkReference
from worker.routes.long_work import MAX_PASSES

HERE, THERE = "euvolume01", "usvolume02"
ENVIRON = {"RUNPOD_VOLUME_ID": HERE, "RUNPOD_DC_ID": "EU-RO-1", "FINE_TUNE": "beside"}
A = "a" * 24
FILE, BATCH, TUNE = (f"{name}{A}.vol-{THERE}" for name in ("file-", "batch_", "ftjob-"))
ADAPTER = f"demo.tuned.vol-{THERE}"


def make_caller(engine: ScriptedEngine, root: Path, can_start: bool | None = None) -> Caller:
    engine.script = tuple(tokens("a"))
    engine.model = replace(engine.model, directory=root, max_lora_rank=8)
    return Caller(engine, root, can_start, BASE_PATH=str(root), **ENVIRON)


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller of a worker with adapters that knows its volume."""
    return make_caller(engine, tmp_path)


def error_message(subject: str) -> str:
    return (
        f"The {subject} is on the network volume {THERE}, and this worker is on {HERE} "
        "(data center EU-RO-1). Send the request again: a worker on that volume can answer."
    )


NEW_BATCH = {"input_file_id": FILE, "endpoint": CHAT, "completion_window": "24h"}
V2, JOBS = "/v2/batch-completions", "/v1/fine_tuning/jobs"
V2_BATCH = {
    "output_data_path": "out/a.json",
    "content": [{"prompt": "a"}],
    "model_config": {"model": "demo"},
}


@pytest.mark.parametrize(
    ("method", "route", "body", "subject"),
    [
        ("GET", f"/v1/files/{FILE}", {}, f"file {FILE}"),
        ("GET", f"/v1/files/{FILE}/content", {}, f"file {FILE}"),
        ("DELETE", f"/v1/files/{FILE}", {}, f"file {FILE}"),
        ("GET", f"/v1/files?after={FILE}", {}, f"object {FILE}"),
        ("POST", "/v1/files", {"path": f"s3://{THERE}/inbox/a"}, f"path s3://{THERE}/inbox/a"),
        ("POST", "/v1/batches", NEW_BATCH, f"file {FILE}"),
        ("GET", f"/v1/batches/{BATCH}", {}, f"batch {BATCH}"),
        ("POST", f"/v1/batches/{BATCH}/cancel", {}, f"batch {BATCH}"),
        ("GET", f"/v1/batches?after={BATCH}", {}, f"object {BATCH}"),
        ("GET", f"{V2}/{BATCH}", {}, f"batch {BATCH}"),
        ("POST", f"{V2}/{BATCH}/actions/cancel", {}, f"batch {BATCH}"),
        ("POST", V2, {**V2_BATCH, "model_config": {"model": ADAPTER}}, f"adapter {ADAPTER}"),
        ("POST", V2, {**V2_BATCH, "content": None, "input_data_path": FILE}, f"file {FILE}"),
        ("GET", f"{JOBS}/{TUNE}", {}, f"fine-tuning job {TUNE}"),
        ("POST", f"{JOBS}/{TUNE}/cancel", {}, f"fine-tuning job {TUNE}"),
        ("GET", f"{JOBS}?after={TUNE}", {}, f"object {TUNE}"),
        ("GET", f"/v1/llm/fine-tunes/{TUNE}", {}, f"fine-tuning job {TUNE}"),
        ("POST", JOBS, {"model": "demo", "training_file": FILE}, f"file {FILE}"),
        ("GET", f"/v1/models/{ADAPTER}", {}, f"adapter {ADAPTER}"),
        ("DELETE", f"/v1/llm/model-endpoints/{ADAPTER}", {}, f"adapter {ADAPTER}"),
        ("GET", f"/v1/llm/model-files/{ADAPTER}/a.json", {}, f"adapter {ADAPTER}"),
    ],
)
async def test_a_request_for_an_object_of_another_volume_is_retryable(
    caller: Caller, method: str, route: str, body: dict[str, Any], subject: str
) -> None:
    error = await caller.request_error(method, route, **body)
    assert (error["code"], error["retryable"]) == (503, True)
    assert error["message"] == error_message(subject)
    assert [path for path in caller.root.rglob("*") if path.is_file()] == []


async def test_malformed_ids_and_names_without_a_volume_are_unknown(caller: Caller) -> None:
    for route in (f"/v1/files/file-x.vol-{THERE}", f"/v1/batches/batch_{A}", f"/v1/files/file-{A}"):
        assert (await caller.request_error("GET", route))["code"] == 404
    error = await caller.request_error("GET", "/v1/models/by-hand")
    assert error["code"] == 404
    assert error["message"].endswith(f"the network volume {HERE} (data center EU-RO-1).")


async def test_without_adapters_a_name_of_another_volume_is_unknown(caller: Caller) -> None:
    caller.engine.model = replace(caller.engine.model, max_lora_rank=None)
    assert (await caller.request_error("GET", f"/v1/models/{ADAPTER}"))["code"] == 404


async def test_all_objects_of_a_batch_carry_its_volume(caller: Caller) -> None:
    batch = (await caller.run_job(batch={"endpoint": CHAT, "requests": lines(1)}))["batch"]
    for key in ("id", "input_file_id", "output_file_id"):
        assert batch[key].endswith(f".vol-{HERE}")
    content = to_jsonl(lines(1)).decode()
    file = await caller.post("/v1/files", purpose="batch", content=content)
    assert file["id"].endswith(f".vol-{HERE}")


async def test_a_copy_of_an_object_is_found_on_the_volume_that_has_it(
    engine: ScriptedEngine, caller: Caller
) -> None:
    other = Caller(engine, caller.root, **{"RUNPOD_VOLUME_ID": THERE})
    file = await other.post("/v1/files", purpose="batch", content="a")
    assert file["id"].endswith(f".vol-{THERE}")
    assert (await caller.get(f"/v1/files/{file['id']}"))["id"] == file["id"]


@pytest.mark.parametrize(("kind", "id"), [("batch", BATCH), ("fine_tune", TUNE)])
@pytest.mark.parametrize("passes", [0, 3])
async def test_a_job_for_work_on_another_volume_is_passed_on(
    engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    id: str,
    passes: int,
) -> None:
    monkeypatch.setattr("worker.routes.long_work.MAX_PASS_PAUSE_S", 0.01)
    caller = make_caller(engine, tmp_path, True)
    work = WorkReference(kind, id, passes)
    answer = await caller.run_job(**work.job_input(max_runtime_sec=86_400))
    assert answer[kind] == {"id": id}
    assert f"is on the network volume {THERE}" in answer["passed_on"]
    assert caller.started_work == [WorkReference(kind, id, passes + 1)]


@pytest.mark.parametrize(
    ("can_start", "passes"), [(None, 0), (False, 0), (True, MAX_PASSES), (True, 10**9)]
)
async def test_a_job_that_cannot_be_passed_on_any_more_fails_retryably(
    engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    can_start: bool | None,
    passes: int,
) -> None:
    monkeypatch.setattr("worker.routes.long_work.MAX_PASS_PAUSE_S", 0.01)
    caller = make_caller(engine, tmp_path, can_start)
    error = await caller.job_error(batch={"id": BATCH, "passes": passes})
    assert (error["code"], error["retryable"]) == (503, True)
    assert error["message"] == error_message(f"batch {BATCH}")


async def test_a_worker_that_stops_passes_its_job_on_without_a_pause(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    caller = make_caller(engine, tmp_path, True)
    caller.worker.stop_long_work()
    await caller.run_job(batch={"id": BATCH, "passes": MAX_PASSES - 1})
    assert caller.started_work == [WorkReference("batch", BATCH, MAX_PASSES)]


async def test_new_work_with_a_file_of_another_volume_is_refused_and_not_passed_on(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    caller = make_caller(engine, tmp_path, True)
    for job in (
        {"batch": {"input_file_id": FILE, "endpoint": CHAT}},
        {"fine_tune": {"training_file": FILE}},
    ):
        assert (await caller.job_error(**job))["message"] == error_message(f"file {FILE}")
    assert caller.started_work == []


async def test_a_fine_tune_of_this_volume_is_found(caller: Caller) -> None:
    id = create_fine_tune(FineTunes(caller.settings)).id
    assert id.endswith(f".vol-{HERE}")
    assert (await caller.get(f"{JOBS}/{id}"))["id"] == id
