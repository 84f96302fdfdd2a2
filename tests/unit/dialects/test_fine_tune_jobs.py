"""Jobs that run a fine-tune, on a scripted engine and with a scripted trainer."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine
from support.fine_tunes import COMMAND, DONE, ID, ROWS, Script, fine_tune_at, pids
from support.processes.background import eventually

from worker.app import Worker
from worker.engine import Engines
from worker.fine_tunes.record import FineTune, FineTunes
from worker.long_work.kinds import LongWork

NEW = {"rows": [{"prompt": "a", "response": "b"}], "max_runtime_sec": 1}
STOPPED: Script = [["step", 5], ["wait"]]


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """A caller of a worker that can train, and whose volume has the rows of ``ID``."""
    monkeypatch.setattr("worker.fine_tunes.workshop.COMMAND", COMMAND)
    for interval in ("fine_tunes.step.WATCH_S", "progress.INTERVAL_S"):
        monkeypatch.setattr(f"worker.{interval}", 0.01)
    engine.model = replace(engine.model, place=tmp_path, max_lora_rank=16)
    caller = Caller(engine, tmp_path, BASE_PATH=str(tmp_path))
    files = FineTunes(caller.settings).files
    files.receive([b"a"], filename="rows.csv", purpose="fine-tune", id=ROWS)
    return caller


def configured(caller: Caller, starts: bool | None = None, /, **environ: str) -> Caller:
    return Caller(caller.engine, caller.root, starts, BASE_PATH=str(caller.root), **environ)


def fine_tune(caller: Caller, script: Script = DONE, base: str = "demo") -> FineTune:
    return fine_tune_at(caller.root, script, base=base)


async def run(caller: Caller) -> Any:
    return (await caller.job(fine_tune={"id": ID}))["fine_tune"]


async def test_a_job_runs_a_fine_tune_that_is_there(caller: Caller) -> None:
    fine_tune(caller)
    found = await caller.job(fine_tune={"id": ID})
    assert found.keys() == {"fine_tune"}
    shown = found["fine_tune"]
    assert (shown["id"], shown["status"], shown["trained_tokens"]) == (ID, "succeeded", 7)
    assert (caller.root / "adapters" / shown["fine_tuned_model"]).is_dir()


async def test_the_trainer_gets_what_the_worker_serves(caller: Caller) -> None:
    tokenizer = caller.root / "t"
    model = replace(caller.engine.model, chat_template="{{ x }}", tokenizer=tokenizer)
    caller.engine.model = model
    running = fine_tune(caller)
    await run(configured(caller, FINE_TUNE_MAX_LENGTH="99"))
    spec = json.loads((running.directory / "spec.json").read_text())
    assert (spec["model"], spec["tokenizer"]) == (str(caller.root), str(tokenizer))
    assert (spec["device"], spec["epochs"], spec["chat_template"]) == ("cpu", 2, "{{ x }}")
    assert (spec["max_length"], spec["training"]["form"]) == (99, "csv")


async def test_a_job_that_comes_again_goes_on_with_what_it_created_and_names_the_next(
    caller: Caller,
) -> None:
    left = await caller.job("job-1", fine_tune=NEW)
    id = left["fine_tune"]["id"]
    assert left["run_with"] == {"input": {"fine_tune": {"id": id}}}
    assert await caller.job("job-1", fine_tune=NEW) == left
    assert [one.id for one in FineTunes(caller.settings).all()] == [id]
    # A worker that can, sends it.
    starting = configured(caller, True)
    assert "run_with" not in await starting.job("job-1", fine_tune=NEW)
    assert starting.started == [LongWork("fine_tune", id)]


async def test_a_jobs_time_begins_before_its_fine_tune_is_created(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its creation takes an hour, which is all that the job has.
    clock = SimpleNamespace(monotonic=iter([0.0, 3600.0]).__next__)
    monkeypatch.setattr("worker.dialects.fine_tune_jobs.time", clock)
    left = await caller.job(fine_tune={**NEW, "max_runtime_sec": 3600})
    assert (left["fine_tune"]["status"], "run_with" in left) == ("queued", True)


async def test_progress_is_reported_while_it_trains(caller: Caller) -> None:
    reported: list[Any] = []

    async def report(_: dict[str, Any], progress: Any) -> None:
        reported.append(progress)

    caller.worker = Worker(caller.engine.engines, caller.settings, report)
    running = fine_tune(caller, STOPPED)
    answering = asyncio.create_task(run(caller))
    await eventually(lambda: any(one["step"] == 5 for one in reported))
    running.cancel()
    await answering
    assert {"step": 5, "epochs": 2, "epoch": 0.5, "loss": 0.2} in reported
    assert running.status == "cancelled"


async def test_exclusively_the_engine_is_set_aside_while_it_is_trained(caller: Caller) -> None:
    running = fine_tune(caller, STOPPED)
    answering = asyncio.create_task(run(configured(caller, FINE_TUNE="exclusive")))
    await eventually(lambda: pids(running) != [])
    assert caller.engine.is_aside
    running.cancel()
    await answering
    assert not caller.engine.is_aside


@pytest.mark.parametrize(
    ("environ", "device", "serves"),
    [({"FINE_TUNE": "beside"}, "cuda", True), ({"FINE_TUNE": "off"}, "cuda", False)],
)
async def test_a_worker_trains_where_its_operator_lets_it_or_it_serves_nothing(
    caller: Caller, environ: dict[str, str], device: str, serves: bool
) -> None:
    caller.engine.model = replace(caller.engine.model, device=device)
    engines = caller.engine.engines if serves else Engines(base=caller.engine)
    caller.worker = Worker(engines, configured(caller, **environ).settings)
    fine_tune(caller)
    assert (await run(caller))["status"] == "succeeded"


@pytest.mark.parametrize(("environ", "device"), [({}, "cuda"), ({"FINE_TUNE": "off"}, "cpu")])
async def test_where_none_is_trained_none_is_made(
    caller: Caller, environ: dict[str, str], device: str
) -> None:
    caller.engine.model = replace(caller.engine.model, device=device)
    caller = configured(caller, **environ)
    body = {"model": "demo", "training_file": ROWS}
    for error in (
        await caller.refused_job(fine_tune=NEW),
        await caller.refused("POST", "/v1/fine_tuning/jobs", **body),
    ):
        assert error["code"] == 400
        assert "--train" in error["message"]
        assert "FINE_TUNE=beside" in error["message"]
    assert FineTunes(caller.settings).all() == []
    fine_tune(caller)
    assert caller.worker.unfinished() == []


async def test_one_of_another_model_is_left_to_its_worker(caller: Caller) -> None:
    others = fine_tune(caller, base="other")
    error = await caller.refused_job(fine_tune={"id": ID})
    assert (error["code"], others.ended()) == (400, False)
    assert "'other'" in error["message"]


async def test_rows_that_are_gone_end_it(caller: Caller) -> None:
    fine_tune(caller)
    FineTunes(caller.settings).files.delete(ROWS, in_use=[])
    found = await run(caller)
    assert (found["status"], found["error"]["code"]) == ("failed", "not_trainable")


async def test_without_a_volume_for_the_adapter_nothing_is_trained(caller: Caller) -> None:
    left = fine_tune(caller)
    without = Caller(caller.engine, caller.root, BASE_PATH=str(caller.root / "none"))
    error = await without.refused_job(fine_tune={"id": ID})
    assert (error["code"], left.ended(), pids(left)) == (507, False, [])
    assert "BASE_PATH" in error["message"]
