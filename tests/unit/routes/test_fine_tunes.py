"""Jobs that run a fine-tune, on a scripted engine and with a scripted trainer."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, refused
from support.engine.scripted import ScriptedEngine, settings, until
from support.fine_tunes import COMMAND, DONE, ID, ROWS, fine_tune_at, pids

from worker.app import Worker
from worker.fine_tunes.runner import SPARE_S
from worker.fine_tunes.store import FineTunes
from worker.job.long_work import LongWork

PAIRS = [{"prompt": "a", "response": "b"}]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    monkeypatch.setattr("worker.routes.resources.COMMAND", COMMAND)
    with ScriptedEngine() as scripted:
        scripted.model = replace(scripted.model, place=tmp_path, max_lora_rank=16)
        yield scripted


def worker_at(root: Path, engine: ScriptedEngine, **environ: str) -> Worker:
    return Worker(engine.engines, settings(BASE_PATH=str(root), **environ))


def rows_at(root: Path) -> str:
    """Upload rows, and return the id of their file."""
    files = FineTunes.of(settings(BASE_PATH=str(root))).files
    return files.receive([b"a"], filename="rows.csv", purpose="fine-tune", id=ROWS).id


async def test_a_job_runs_a_fine_tune_that_is_there(tmp_path: Path, engine: ScriptedEngine) -> None:
    rows_at(tmp_path)
    fine_tune_at(tmp_path, DONE, base="demo")
    found = await answered(worker_at(tmp_path, engine), {"fine_tune": {"id": ID}})
    assert found.keys() == {"fine_tune"}
    shown = found["fine_tune"]
    assert (shown["id"], shown["status"], shown["trained_tokens"]) == (ID, "succeeded", 7)
    assert (tmp_path / "adapters" / shown["fine_tuned_model"]).is_dir()


async def test_the_trainer_is_given_what_the_worker_serves(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    engine.model = replace(engine.model, chat_template="{{ x }}", tokenizer=tmp_path / "t")
    rows_at(tmp_path)
    fine_tune = fine_tune_at(tmp_path, DONE, base="demo")
    worker = worker_at(tmp_path, engine, FINE_TUNE_MAX_LENGTH="99")
    await answered(worker, {"fine_tune": {"id": ID}})
    spec = json.loads((fine_tune.directory / "spec.json").read_text())
    assert spec["max_length"] == 99
    assert (spec["device"], spec["epochs"], spec["chat_template"]) == ("cpu", 2, "{{ x }}")
    assert (spec["model"], spec["tokenizer"]) == (str(tmp_path), str(tmp_path / "t"))
    assert spec["training"]["form"] == "csv"


async def test_a_job_that_creates_one_goes_on_with_it_when_it_comes_again(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    worker = worker_at(tmp_path, engine)
    payload = {"fine_tune": {"rows": PAIRS, "max_runtime_sec": 1}}
    left = await answered(worker, payload, "job-1")
    again = await answered(worker, payload, "job-1")
    id = left["fine_tune"]["id"]
    assert left["run_with"] == {"input": {"fine_tune": {"id": id}}}
    assert left == again
    assert [one.id for one in FineTunes.of(settings(BASE_PATH=str(tmp_path))).all()] == [id]


@pytest.mark.parametrize("starts", [True, False])
async def test_a_job_whose_time_is_over_sends_the_next_or_says_what_to_send(
    tmp_path: Path, engine: ScriptedEngine, *, starts: bool
) -> None:
    started: list[LongWork] = []

    async def start(work: LongWork) -> bool:
        started.append(work)
        return starts

    worker = Worker(engine.engines, settings(BASE_PATH=str(tmp_path)), start=start)
    found = await answered(worker, {"fine_tune": {"rows": PAIRS, "max_runtime_sec": 1}})
    assert started == [LongWork("fine_tune", found["fine_tune"]["id"])]
    assert ("run_with" in found) == (not starts)


async def test_a_jobs_time_begins_before_its_fine_tune_is_created(
    tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow() -> dict[str, None]:
        await asyncio.sleep(1)
        return {}

    monkeypatch.setattr(engine, "adapters_on_volume", slow)
    payload = {"fine_tune": {"rows": PAIRS, "max_runtime_sec": SPARE_S + 0.5}}
    left = await answered(worker_at(tmp_path, engine), payload)
    assert (left["fine_tune"]["status"], "run_with" in left) == ("queued", True)


async def test_progress_is_reported_while_it_trains(tmp_path: Path, engine: ScriptedEngine) -> None:
    reported: list[Any] = []

    async def report(_: dict[str, Any], progress: Any) -> None:
        reported.append(progress)

    rows_at(tmp_path)
    fine_tune = fine_tune_at(tmp_path, [["step", 5], ["wait"]], base="demo")
    worker = Worker(engine.engines, settings(BASE_PATH=str(tmp_path)), report)
    job = {"id": "job-1", "input": {"fine_tune": {"id": ID}}}

    answering = asyncio.create_task(_all(worker, job))
    assert await until(lambda: any(one["step"] == 5 for one in reported))
    fine_tune.cancel()
    await answering
    assert {"step": 5, "epochs": 2, "epoch": 0.5, "loss": 0.2} in reported
    assert fine_tune.status == "cancelled"


async def _all(worker: Worker, job: dict[str, Any]) -> list[Any]:
    return [chunk async for chunk in worker.handle(job)]


@pytest.mark.parametrize(
    ("environ", "device", "trains"),
    [
        ({}, "cpu", True),
        ({}, "cuda", False),
        ({"FINE_TUNE": "off"}, "cpu", False),
        ({"FINE_TUNE": "beside"}, "cuda", True),
    ],
)
async def test_a_worker_trains_where_its_operator_lets_it(
    tmp_path: Path,
    engine: ScriptedEngine,
    environ: dict[str, str],
    device: str,
    *,
    trains: bool,
) -> None:
    engine.model = replace(engine.model, device=device)
    rows_at(tmp_path)
    fine_tune = fine_tune_at(tmp_path, DONE, base="demo")
    worker = worker_at(tmp_path, engine, **environ)
    if trains:
        await answered(worker, {"fine_tune": {"id": ID}})
    else:
        error = await refused(worker, {"fine_tune": {"id": ID}})
        assert error["code"] == 400
        assert "--train" in error["message"]
        assert "FINE_TUNE=beside" in error["message"]
    assert (pids(fine_tune) != []) == trains


async def test_a_worker_without_an_engine_trains_whatever_is_set(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    engine.model = replace(engine.model, device="cuda")
    rows_at(tmp_path)
    fine_tune_at(tmp_path, DONE, base="demo")
    only_trains = replace(engine.engines, serve=False)
    for fine_tune in ({}, {"FINE_TUNE": "off"}):
        worker = Worker(only_trains, settings(BASE_PATH=str(tmp_path), **fine_tune))
        found = await answered(worker, {"fine_tune": {"id": ID}})
        assert found["fine_tune"]["status"] == "succeeded"


async def test_where_none_is_trained_none_is_created_either(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    worker = worker_at(tmp_path, engine, FINE_TUNE="off")
    body = {"model": "demo", "training_file": rows_at(tmp_path)}
    payload = {"route": "/v1/fine_tuning/jobs", "method": "POST", "body": body}
    error = await refused(worker, payload)
    assert (error["code"], worker.unfinished()) == (400, [])


async def test_exclusively_the_engine_is_set_aside_while_it_is_trained(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    rows_at(tmp_path)
    fine_tune = fine_tune_at(tmp_path, [["step", 5], ["wait"]], base="demo")
    worker = worker_at(tmp_path, engine, FINE_TUNE="exclusive")
    answering = asyncio.create_task(_all(worker, {"id": "a", "input": {"fine_tune": {"id": ID}}}))
    assert await until(lambda: pids(fine_tune) != [])
    assert engine.is_aside
    fine_tune.cancel()
    await answering
    assert not engine.is_aside


async def test_a_fine_tune_of_another_model_is_left_to_its_own_worker(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE, base="other")
    error = await refused(worker_at(tmp_path, engine), {"fine_tune": {"id": ID}})
    assert (error["code"], fine_tune.ended()) == (400, False)
    assert "'other'" in error["message"]


async def test_rows_that_are_gone_end_it(tmp_path: Path, engine: ScriptedEngine) -> None:
    fine_tune_at(tmp_path, DONE, base="demo")
    found = await answered(worker_at(tmp_path, engine), {"fine_tune": {"id": ID}})
    assert found["fine_tune"]["status"] == "failed"
    assert found["fine_tune"]["error"]["code"] == "not_trainable"


async def test_without_a_volume_for_the_adapter_nothing_is_trained(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    rows_at(tmp_path)
    fine_tune = fine_tune_at(tmp_path, DONE, base="demo")
    environ = settings(BASE_PATH=str(tmp_path / "none"), FILES_PATH=str(tmp_path))
    error = await refused(Worker(engine.engines, environ), {"fine_tune": {"id": ID}})
    assert (error["code"], fine_tune.ended(), pids(fine_tune)) == (507, False, [])
    assert "BASE_PATH" in error["message"]


async def test_an_unknown_one_is_refused(tmp_path: Path, engine: ScriptedEngine) -> None:
    error = await refused(worker_at(tmp_path, engine), {"fine_tune": {"id": ID}})
    assert error["code"] == 404
