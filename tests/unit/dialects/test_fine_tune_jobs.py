"""Jobs that run a fine-tune, with a scripted engine and a scripted trainer."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine
from support.fine_tunes import COMMAND, DONE, ID, ROWS, Script, scripted_fine_tune, trainer_pids
from support.processes.background import poll_until
from support.volume import all_records

from worker.app import Worker
from worker.engine import Engines
from worker.fine_tunes.record import FineTune, FineTunes
from worker.long_work.records import WorkReference

NEW_FINE_TUNE = {"rows": [{"prompt": "a", "response": "b"}], "max_runtime_sec": 1}
WAITING: Script = [["step", 5], ["wait"]]


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """A caller of a worker that can train; its volume has the rows of the fine-tune ``ID``."""
    monkeypatch.setattr("worker.fine_tunes.step.COMMAND", COMMAND)
    for interval in ("fine_tunes.step.POLL_S", "progress.INTERVAL_S"):
        monkeypatch.setattr(f"worker.{interval}", 0.01)
    engine.model = replace(engine.model, directory=tmp_path, max_lora_rank=16)
    caller = Caller(engine, tmp_path, BASE_PATH=str(tmp_path))
    files = FineTunes(caller.settings).files
    files.receive([b"a"], filename="rows.csv", purpose="fine-tune", id=ROWS)
    return caller


def make_caller(caller: Caller, can_start_work: bool | None = None, /, **environ: str) -> Caller:
    return Caller(caller.engine, caller.root, can_start_work, BASE_PATH=str(caller.root), **environ)


def create_fine_tune(caller: Caller, script: Script = DONE, base: str = "demo") -> FineTune:
    return scripted_fine_tune(caller.root, script, base=base)


async def run_fine_tune(caller: Caller) -> Any:
    return (await caller.run_job(fine_tune={"id": ID}))["fine_tune"]


async def test_a_job_runs_an_existing_fine_tune(caller: Caller) -> None:
    create_fine_tune(caller)
    response = await caller.run_job(fine_tune={"id": ID})
    assert response.keys() == {"fine_tune"}
    job = response["fine_tune"]
    assert (job["id"], job["status"], job["trained_tokens"]) == (ID, "succeeded", 7)
    assert (caller.root / "adapters" / job["fine_tuned_model"]).is_dir()


async def test_the_trainer_gets_the_model_and_the_settings_of_the_worker(caller: Caller) -> None:
    tokenizer = caller.root / "t"
    model = replace(caller.engine.model, chat_template="{{ x }}", tokenizer=tokenizer)
    caller.engine.model = model
    fine_tune = create_fine_tune(caller)
    await run_fine_tune(make_caller(caller, FINE_TUNE_MAX_LENGTH="99"))
    spec = json.loads((fine_tune.directory / "spec.json").read_text())
    assert (spec["model"], spec["tokenizer"]) == (str(caller.root), str(tokenizer))
    assert (spec["device"], spec["epochs"], spec["chat_template"]) == ("cpu", 2, "{{ x }}")
    assert (spec["max_length"], spec["training"]["form"]) == (99, "csv")


async def test_a_repeated_job_continues_its_fine_tune_and_names_the_next_job(
    caller: Caller,
) -> None:
    response = await caller.run_job("job-1", fine_tune=NEW_FINE_TUNE)
    id = response["fine_tune"]["id"]
    assert response["run_with"] == {"input": {"fine_tune": {"id": id}}}
    assert await caller.run_job("job-1", fine_tune=NEW_FINE_TUNE) == response
    assert [one.id for one in all_records(FineTunes(caller.settings))] == [id]
    # A worker that can start jobs starts the next job itself.
    starting_caller = make_caller(caller, True)
    assert "run_with" not in await starting_caller.run_job("job-1", fine_tune=NEW_FINE_TUNE)
    assert starting_caller.started_work == [WorkReference("fine_tune", id)]


async def test_a_jobs_time_starts_before_it_creates_its_fine_tune(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Creating the fine-tune takes one hour, all the time that the job has.
    clock = SimpleNamespace(monotonic=iter([0.0, 3600.0]).__next__)
    monkeypatch.setattr("worker.dialects.long_jobs.time", clock)
    response = await caller.run_job(fine_tune={**NEW_FINE_TUNE, "max_runtime_sec": 3600})
    assert (response["fine_tune"]["status"], "run_with" in response) == ("queued", True)


async def test_progress_is_reported_during_training(caller: Caller) -> None:
    reported: list[Any] = []

    async def report(_: dict[str, Any], progress: Any) -> None:
        reported.append(progress)

    caller.worker = Worker(caller.engine.engines, caller.settings, report)
    fine_tune = create_fine_tune(caller, WAITING)
    job_task = asyncio.create_task(run_fine_tune(caller))
    await poll_until(lambda: any(one["step"] == 5 for one in reported))
    fine_tune.cancel()
    await job_task
    assert {"step": 5, "epochs": 2, "epoch": 0.5, "loss": 0.2} in reported
    assert fine_tune.status == "cancelled"


async def test_an_exclusive_fine_tune_suspends_the_engine(caller: Caller) -> None:
    fine_tune = create_fine_tune(caller, WAITING)
    job_task = asyncio.create_task(run_fine_tune(make_caller(caller, FINE_TUNE="exclusive")))
    await poll_until(lambda: trainer_pids(fine_tune) != [])
    assert caller.engine.is_suspended
    fine_tune.cancel()
    await job_task
    assert not caller.engine.is_suspended


@pytest.mark.parametrize(
    ("environ", "device", "serves_model"),
    [({"FINE_TUNE": "beside"}, "cuda", True), ({"FINE_TUNE": "off"}, "cuda", False)],
)
async def test_a_worker_trains_if_the_operator_allows_it_or_it_serves_no_model(
    caller: Caller, environ: dict[str, str], device: str, serves_model: bool
) -> None:
    caller.engine.model = replace(caller.engine.model, device=device)
    engines = caller.engine.engines if serves_model else Engines(base_model=caller.engine)
    caller.worker = Worker(engines, make_caller(caller, **environ).settings)
    create_fine_tune(caller)
    assert (await run_fine_tune(caller))["status"] == "succeeded"


@pytest.mark.parametrize(("environ", "device"), [({}, "cuda"), ({"FINE_TUNE": "off"}, "cpu")])
async def test_a_worker_that_does_not_train_creates_no_fine_tunes(
    caller: Caller, environ: dict[str, str], device: str
) -> None:
    caller.engine.model = replace(caller.engine.model, device=device)
    caller = make_caller(caller, **environ)
    body = {"model": "demo", "training_file": ROWS}
    for error in (
        await caller.job_error(fine_tune=NEW_FINE_TUNE),
        await caller.request_error("POST", "/v1/fine_tuning/jobs", **body),
    ):
        assert error["code"] == 400
        assert "--train" in error["message"]
        assert "FINE_TUNE=beside" in error["message"]
    assert all_records(FineTunes(caller.settings)) == []
    create_fine_tune(caller)
    assert caller.worker.list_unfinished_work() == []


async def test_a_fine_tune_of_another_model_is_refused_and_stays_unfinished(caller: Caller) -> None:
    fine_tune = create_fine_tune(caller, base="other")
    error = await caller.job_error(fine_tune={"id": ID})
    assert (error["code"], fine_tune.has_ended()) == (400, False)
    assert "'other'" in error["message"]


async def test_a_fine_tune_fails_if_its_rows_were_deleted(caller: Caller) -> None:
    create_fine_tune(caller)
    FineTunes(caller.settings).files.delete(ROWS, in_use=[])
    job = await run_fine_tune(caller)
    assert (job["status"], job["error"]["code"]) == ("failed", "not_trainable")


async def test_a_job_without_a_volume_for_the_adapter_is_refused(caller: Caller) -> None:
    fine_tune = create_fine_tune(caller)
    caller_without_volume = Caller(caller.engine, caller.root, BASE_PATH=str(caller.root / "none"))
    error = await caller_without_volume.job_error(fine_tune={"id": ID})
    assert (error["code"], fine_tune.has_ended(), trainer_pids(fine_tune)) == (507, False, [])
    assert "BASE_PATH" in error["message"]
