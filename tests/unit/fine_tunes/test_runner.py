"""A job's work on a fine-tune: begun, stopped, gone on with, and ended, with a scripted trainer."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.engine.scripted import until
from support.fine_tunes import (
    CHECKED,
    DONE,
    adapters,
    alive,
    fine_tune_at,
    pids,
    result_of,
    run,
    running,
    workshop_at,
)
from support.processes.background import HUNG_S

from worker.errors import InvalidInput
from worker.fine_tunes.attempt import Progress
from worker.fine_tunes.runner import SPARE_S
from worker.fine_tunes.state import FineTune
from worker.trainer.spec import SPEC

WAITS = [*CHECKED, ["wait"]]
DEAF = [*CHECKED, ["deaf"]]


async def begun(fine_tune: FineTune, count: int = 1) -> None:
    """Wait until an attempt has told of a step."""
    assert await until(lambda: len(fine_tune.attempts()) == count and _told(fine_tune))


def _told(fine_tune: FineTune) -> bool:
    events = fine_tune.attempts()[-1] / "events.jsonl"
    return events.is_file() and '"step": 5' in events.read_text()


async def test_a_training_that_ends_well_is_served_by_its_name(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE, suffix="mine")
    progress = Progress()
    assert await run(fine_tune, workshop_at(tmp_path), progress=progress) == "ended"
    result = result_of(fine_tune)
    name = "demo.mine.231114-221320"
    assert (result.status, result.adapter, result.error) == ("succeeded", name, None)
    assert (result.trained_tokens, result.steps) == (7, 10)
    assert result.result_file_ids == ("file-metrics",)
    # The best step's adapter is the result.
    assert [(one.step, one.name) for one in result.checkpoints] == [
        (5, f"{name}.ckpt-5"),
        (10, name),
    ]
    made = {
        path.name: (path / "adapter_model.safetensors").read_text() for path in adapters(tmp_path)
    }
    assert made == {name: "result", f"{name}.ckpt-5": "epoch 5"}
    assert progress.shown() == {"step": 10, "epochs": 2, "epoch": 1.0, "loss": 0.1}
    assert not alive(fine_tune)
    assert not fine_tune.held()


async def test_the_trainer_is_given_its_spec(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)
    await run(fine_tune, workshop_at(tmp_path))
    assert json.loads((fine_tune.directory / SPEC).read_text())["max_length"] == 8


async def test_mistakes_in_the_rows_are_the_failure_of_their_file(tmp_path: Path) -> None:
    mistake = {"file": "validation_file", "line": 3, "message": "no answer"}
    over = ["over", {"error": "The file has 1 mistake."}]
    fine_tune = fine_tune_at(tmp_path, [["checked", {"mistakes": [mistake]}], over])
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"
    result = result_of(fine_tune)
    assert result.status == "failed"
    assert result.error
    assert result.error.model_dump() == {
        "code": "invalid_validation_file",
        "message": "The file has 1 mistake.",
        "param": "validation_file",
    }
    assert adapters(tmp_path) == []


async def test_an_adapter_that_can_not_be_served_is_not_published(tmp_path: Path) -> None:
    async def refuse(_: Path) -> None:
        raise InvalidInput("it holds values that are not finite numbers")

    fine_tune = fine_tune_at(tmp_path, DONE)
    await run(fine_tune, workshop_at(tmp_path, check=refuse))
    result = result_of(fine_tune)
    assert result.error
    assert "values that are not finite" in result.error.message
    assert adapters(tmp_path) == []


async def test_what_can_not_be_trained_here_fails_before_anything_is_started(
    tmp_path: Path,
) -> None:
    def refuse(_: FineTune) -> None:
        raise InvalidInput("it needs 80.0 GiB")

    fine_tune = fine_tune_at(tmp_path, DONE)
    await run(fine_tune, workshop_at(tmp_path, spec=refuse))
    assert result_of(fine_tune).error
    assert pids(fine_tune) == []


@pytest.mark.parametrize("script", [WAITS, DEAF], ids=["listens", "deaf"])
async def test_a_cancel_ends_it_at_once_and_leaves_no_adapter(
    tmp_path: Path, script: list[list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.fine_tunes.runner.CHECKPOINT_S", 10 * HUNG_S)
    fine_tune = fine_tune_at(tmp_path, script)
    task = running(fine_tune, workshop_at(tmp_path))
    await begun(fine_tune)
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert (result_of(fine_tune).status, alive(fine_tune)) == ("cancelled", [])
    assert adapters(tmp_path) == []


async def test_a_cancel_while_the_adapter_is_checked_leaves_none(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)

    async def check(_: Path) -> None:
        fine_tune.cancel()

    await run(fine_tune, workshop_at(tmp_path, check=check))
    assert (result_of(fine_tune).status, adapters(tmp_path)) == ("cancelled", [])


async def test_a_cancel_does_not_wait_for_the_checkpoint_of_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.fine_tunes.runner.CHECKPOINT_S", 10 * HUNG_S)
    fine_tune = fine_tune_at(tmp_path, DEAF)
    task = running(fine_tune, workshop_at(tmp_path))
    await begun(fine_tune)
    fine_tune.pause()
    await asyncio.sleep(2)
    assert not task.done()
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert (result_of(fine_tune).status, alive(fine_tune)) == ("cancelled", [])


async def test_one_that_was_cancelled_before_it_began_is_ended(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)
    fine_tune.cancel()
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"
    assert (result_of(fine_tune).status, pids(fine_tune)) == ("cancelled", [])


async def test_a_pause_writes_a_checkpoint_from_which_another_job_goes_on(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, WAITS, DONE)
    workshop = workshop_at(tmp_path)
    task = running(fine_tune, workshop)
    await begun(fine_tune)
    fine_tune.pause()
    assert await task == "paused"
    assert (fine_tune.status, alive(fine_tune)) == ("paused", [])
    (first,) = fine_tune.attempts()
    assert (first / "checkpoints" / "checkpoint-5").is_dir()
    assert await run(fine_tune, workshop) == "paused"
    fine_tune.resume()
    assert await run(fine_tune, workshop) == "ended"
    assert result_of(fine_tune).status == "succeeded"
    _, second = fine_tune.attempts()
    assert (second / "events.jsonl").read_text().startswith('{"resumed_at": 5}')


@pytest.mark.parametrize("ends", ["time", "worker"])
async def test_a_job_whose_time_is_over_or_whose_worker_leaves_hands_over_at_a_checkpoint(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    passed_s: list[float] = []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + sum(passed_s))
    monkeypatch.setattr("worker.fine_tunes.runner.time", clock)
    fine_tune = fine_tune_at(tmp_path, WAITS, DONE)
    workshop = workshop_at(tmp_path, closed=lambda: bool(closed))
    task = running(fine_tune, workshop, seconds=3600)
    await begun(fine_tune)
    if ends == "worker":
        closed.append(True)
    else:
        passed_s.append(3600 - SPARE_S)
    assert await task == "left"
    assert (fine_tune.status, alive(fine_tune)) == ("queued", [])
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"
    assert len(fine_tune.attempts()) == 2


async def test_a_job_that_is_cancelled_leaves_no_process_and_no_lease(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DEAF, DONE)
    task = running(fine_tune, workshop_at(tmp_path))
    await begun(fine_tune)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), alive(fine_tune), fine_tune.held()) == (True, [], False)
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"


async def test_two_jobs_at_once_train_it_once(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, WAITS, DONE)
    one, other = (running(fine_tune, workshop_at(tmp_path)) for _ in range(2))
    await begun(fine_tune)
    await asyncio.sleep(1.5)
    assert len(pids(fine_tune)) == 1
    fine_tune.pause()
    assert {await one, await other} == {"paused"}


async def test_a_worker_that_has_lost_its_lease_ends_its_process_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.volume.lease.BEAT_S", 0.1)
    fine_tune = fine_tune_at(tmp_path, DEAF, DONE)
    task = running(fine_tune, workshop_at(tmp_path))
    await begun(fine_tune)
    (pid,) = pids(fine_tune)
    # Another worker has taken over.
    taken = fine_tune.leases() / "lease-99"
    taken.write_text("{}")
    assert await until(lambda: not alive(fine_tune))
    assert not task.done()
    taken.unlink()
    assert await task == "ended"
    assert pids(fine_tune)[0] == pid
    assert len(pids(fine_tune)) == 2


async def test_a_worker_trains_one_adapter_at_a_time_the_oldest_first(tmp_path: Path) -> None:
    shared = workshop_at(tmp_path)
    first, younger, older = (
        fine_tune_at(tmp_path, script, id=f"ftjob-{letter * 24}", created_at=created_at)
        for letter, script, created_at in (("a", WAITS, 3), ("b", DONE, 2), ("c", DONE, 1))
    )
    tasks = [running(first, shared)]
    await begun(first)
    tasks += [running(younger, shared), running(older, shared)]
    assert await until(lambda: len(shared.bench._waiting) == len(tasks))
    first.cancel()
    assert [await task for task in tasks] == ["ended"] * 3
    events = [one.attempts()[0] / "events.jsonl" for one in (older, younger)]
    began = [path.stat().st_mtime_ns for path in events]
    ended = [(one.directory / "result.json").stat().st_mtime_ns for one in (first, older)]
    # A disk's times are some milliseconds apart.
    assert ended[0] <= began[0] <= ended[1] <= began[1]


async def test_one_that_waits_for_another_is_cancelled_at_once(tmp_path: Path) -> None:
    shared = workshop_at(tmp_path)
    trained = fine_tune_at(tmp_path, WAITS)
    waiting = fine_tune_at(tmp_path, DONE, id="ftjob-" + "b" * 24)
    first = running(trained, shared)
    await begun(trained)
    second = running(waiting, shared)
    await asyncio.sleep(0.1)
    waiting.cancel()
    assert await asyncio.wait_for(second, HUNG_S) == "ended"
    assert result_of(waiting).status == "cancelled"
    trained.cancel()
    assert await first == "ended"
