"""Jobs that run a fine-tune, on a scripted engine and with a scripted trainer."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine, until
from support.fine_tunes import COMMAND, DONE, ID, ROWS, Script, fine_tune_at, pids

from worker.app import Worker
from worker.fine_tunes.runner import SPARE_S
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes
from worker.job.long_work import LongWork

NEW = {"rows": [{"prompt": "a", "response": "b"}], "max_runtime_sec": 1}
STOPPED: Script = [["step", 5], ["wait"]]

# Makes a caller of a worker with these settings, whose volume has the rows of ``ID``.
Calling = Callable[..., Caller]


@pytest.fixture
def calling(engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calling:
    monkeypatch.setattr("worker.routes.resources.COMMAND", COMMAND)
    for interval in ("fine_tunes.runner.WATCH_S", "progress.INTERVAL_S"):
        monkeypatch.setattr(f"worker.{interval}", 0.01)
    engine.model = replace(engine.model, place=tmp_path, max_lora_rank=16)

    def made(*, starts: bool | None = None, **environ: str) -> Caller:
        caller = Caller(engine, tmp_path, starts, BASE_PATH=str(tmp_path), **environ)
        files = FineTunes.of(caller.settings).files
        files.receive([b"a"], filename="rows.csv", purpose="fine-tune", id=ROWS)
        return caller

    return made


def fine_tune(root: Path, script: Script = DONE, base: str = "demo") -> FineTune:
    return fine_tune_at(root, script, base=base)


async def test_a_job_runs_a_fine_tune_that_is_there(calling: Calling, tmp_path: Path) -> None:
    fine_tune(tmp_path)
    found = await calling().job(fine_tune={"id": ID})
    assert found.keys() == {"fine_tune"}
    shown = found["fine_tune"]
    assert (shown["id"], shown["status"], shown["trained_tokens"]) == (ID, "succeeded", 7)
    assert (tmp_path / "adapters" / shown["fine_tuned_model"]).is_dir()


async def test_the_trainer_is_given_what_the_worker_serves(
    calling: Calling, engine: ScriptedEngine, tmp_path: Path
) -> None:
    caller = calling(FINE_TUNE_MAX_LENGTH="99")
    engine.model = replace(engine.model, chat_template="{{ x }}", tokenizer=tmp_path / "t")
    running = fine_tune(tmp_path)
    await caller.job(fine_tune={"id": ID})
    spec = json.loads((running.directory / "spec.json").read_text())
    assert spec["training"]["form"] == "csv"
    assert (
        spec.items()
        >= {
            "max_length": 99,
            "device": "cpu",
            "epochs": 2,
            "chat_template": "{{ x }}",
            "model": str(tmp_path),
            "tokenizer": str(tmp_path / "t"),
        }.items()
    )


async def test_a_job_that_creates_one_goes_on_with_it_when_it_comes_again(calling: Calling) -> None:
    caller = calling()
    left = await caller.job("job-1", fine_tune=NEW)
    id = left["fine_tune"]["id"]
    assert left["run_with"] == {"input": {"fine_tune": {"id": id}}}
    assert await caller.job("job-1", fine_tune=NEW) == left
    assert [one.id for one in FineTunes.of(caller.settings).all()] == [id]


@pytest.mark.parametrize("starts", [True, False])
async def test_a_job_whose_time_is_over_sends_the_next_or_says_what_to_send(
    calling: Calling, starts: bool
) -> None:
    caller = calling(starts=starts)
    left = await caller.job(fine_tune=NEW)
    assert caller.started == [LongWork("fine_tune", left["fine_tune"]["id"])]
    assert ("run_with" in left) == (not starts)


async def test_a_jobs_time_begins_before_its_fine_tune_is_created(
    calling: Calling, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow() -> dict[str, None]:
        await asyncio.sleep(0.2)
        return {}

    monkeypatch.setattr(engine, "adapters_on_volume", slow)
    left = await calling().job(fine_tune={**NEW, "max_runtime_sec": SPARE_S + 0.1})
    assert (left["fine_tune"]["status"], "run_with" in left) == ("queued", True)


async def test_progress_is_reported_while_it_trains(calling: Calling, tmp_path: Path) -> None:
    reported: list[Any] = []

    async def report(_: dict[str, Any], progress: Any) -> None:
        reported.append(progress)

    caller = calling()
    caller.worker = Worker(caller.engine.engines, caller.settings, report)
    running = fine_tune(tmp_path, STOPPED)
    answering = asyncio.create_task(caller.job(fine_tune={"id": ID}))
    assert await until(lambda: any(one["step"] == 5 for one in reported))
    running.cancel()
    await answering
    assert {"step": 5, "epochs": 2, "epoch": 0.5, "loss": 0.2} in reported
    assert running.status == "cancelled"


async def test_exclusively_the_engine_is_set_aside_while_it_is_trained(
    calling: Calling, engine: ScriptedEngine, tmp_path: Path
) -> None:
    running = fine_tune(tmp_path, STOPPED)
    caller = calling(FINE_TUNE="exclusive")
    answering = asyncio.create_task(caller.job(fine_tune={"id": ID}))
    assert await until(lambda: pids(running) != [])
    assert engine.is_aside
    running.cancel()
    await answering
    assert not engine.is_aside


@pytest.mark.parametrize(
    ("environ", "device", "serves"),
    [
        ({}, "cpu", True),
        ({"FINE_TUNE": "beside"}, "cuda", True),
        ({}, "cuda", False),
        ({"FINE_TUNE": "off"}, "cuda", False),
    ],
)
async def test_a_worker_trains_where_its_operator_lets_it_or_it_serves_nothing(
    calling: Calling, tmp_path: Path, environ: dict[str, str], device: str, serves: bool
) -> None:
    caller = calling(**environ)
    caller.engine.model = replace(caller.engine.model, device=device)
    engines = replace(caller.engine.engines, serve=serves)
    caller.worker = Worker(engines, caller.settings)
    fine_tune(tmp_path)
    found = await caller.job(fine_tune={"id": ID})
    assert found["fine_tune"]["status"] == "succeeded"


@pytest.mark.parametrize(("environ", "device"), [({}, "cuda"), ({"FINE_TUNE": "off"}, "cpu")])
async def test_where_none_is_trained_none_is_run_or_created(
    calling: Calling, tmp_path: Path, environ: dict[str, str], device: str
) -> None:
    caller = calling(**environ)
    caller.engine.model = replace(caller.engine.model, device=device)
    error = await caller.refused_job(fine_tune=NEW)
    route = "/v1/fine_tuning/jobs"
    assert await caller.refused("POST", route, model="demo", training_file=ROWS) == {
        **error,
        "request_id": "job-2",
    }
    assert error["code"] == 400
    assert "--train" in error["message"]
    assert "FINE_TUNE=beside" in error["message"]
    assert FineTunes.of(caller.settings).all() == []
    fine_tune(tmp_path)
    assert caller.worker.unfinished() == []


async def test_a_fine_tune_of_another_model_is_left_to_its_own_worker(
    calling: Calling, tmp_path: Path
) -> None:
    others = fine_tune(tmp_path, base="other")
    error = await calling().refused_job(fine_tune={"id": ID})
    assert (error["code"], others.ended()) == (400, False)
    assert "'other'" in error["message"]


async def test_rows_that_are_gone_end_it(calling: Calling, tmp_path: Path) -> None:
    fine_tune(tmp_path)
    caller = calling()
    FineTunes.of(caller.settings).files.delete(ROWS, in_use=[])
    found = await caller.job(fine_tune={"id": ID})
    assert found["fine_tune"]["status"] == "failed"
    assert found["fine_tune"]["error"]["code"] == "not_trainable"


async def test_without_a_volume_for_the_adapter_nothing_is_trained(
    calling: Calling, engine: ScriptedEngine, tmp_path: Path
) -> None:
    calling()
    left = fine_tune(tmp_path)
    caller = Caller(engine, tmp_path, BASE_PATH=str(tmp_path / "none"))
    error = await caller.refused_job(fine_tune={"id": ID})
    assert (error["code"], left.ended(), pids(left)) == (507, False, [])
    assert "BASE_PATH" in error["message"]


async def test_an_unknown_one_is_refused(calling: Calling) -> None:
    assert (await calling().refused_job(fine_tune={"id": ID}))["code"] == 404
