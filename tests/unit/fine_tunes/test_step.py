"""A job's work on a fine-tune: begun, stopped, gone on with, and ended, with a scripted trainer."""

import asyncio
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fine_tunes import (
    CHECKED,
    DONE,
    Script,
    ScriptedWorkshop,
    adapters,
    alive,
    failure_of,
    fine_tune_at,
    pids,
    result_of,
    run,
    running,
)
from support.processes.background import HUNG_S, eventually

from trainer.spec import SPEC
from worker.errors import InvalidInput
from worker.fine_tunes.record import FineTune
from worker.fine_tunes.step import SPARE_S
from worker.long_work.runner import How
from worker.volume.lease import Claim, Leases

WAITS: Script = [*CHECKED, ["wait"]]
DEAF: Script = [["deaf"], *CHECKED, ["wait"]]


async def begun(fine_tune: FineTune, count: int = 1) -> Path:
    """Wait until an attempt has done a step; return its directory."""

    def is_begun() -> bool:
        attempts = fine_tune.attempts()
        events = attempts[-1] / "events.jsonl" if len(attempts) == count else None
        return bool(events and events.is_file() and '"step": 5' in events.read_text())

    await eventually(is_begun)
    return fine_tune.attempts()[-1]


async def begin(
    root: Path, *scripts: Script, **changes: Any
) -> tuple[FineTune, asyncio.Task[How], Path]:
    """Begin to train; return the fine-tune, its job and the attempt, of which a step is done."""
    fine_tune = fine_tune_at(root, *scripts)
    task = running(fine_tune, ScriptedWorkshop(root, **changes), seconds=3600)
    return fine_tune, task, await begun(fine_tune)


def outcome(fine_tune: FineTune, root: Path) -> tuple[str, list[int], list[Path]]:
    """Return how it is, which of its processes live, and what has been published."""
    return fine_tune.status, alive(fine_tune), adapters(root)


async def test_a_training_that_ends_well_is_served_by_its_name(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE, suffix="mine")
    progress: dict[str, float] = {}
    assert await run(fine_tune, ScriptedWorkshop(tmp_path), progress=progress) == "ended"
    result = result_of(fine_tune)
    name = "demo.mine.231114-221320"
    assert (result.status, result.adapter, result.error) == ("succeeded", name, None)
    assert (result.trained_tokens, result.steps) == (7, 10)
    assert result.result_file_ids == ("file-metrics",)
    # The best step's adapter is the result.
    checkpoints = [(one.step, one.name) for one in result.checkpoints]
    assert checkpoints == [(5, f"{name}.ckpt-5"), (10, name)]
    weights = "adapter_model.safetensors"
    made = {path.name: (path / weights).read_text() for path in adapters(tmp_path)}
    assert made == {name: "result", f"{name}.ckpt-5": "epoch 5"}
    assert progress == {"step": 10, "epochs": 2, "epoch": 1.0, "loss": 0.1}
    assert json.loads((fine_tune.directory / SPEC).read_text())["max_length"] == 8
    assert not alive(fine_tune)
    assert not fine_tune.held()


MISTAKE = {"file": "validation_file", "line": 3, "message": "no answer"}
MISTAKEN = [["checked", {"mistakes": [MISTAKE]}], ["over", {"error": "The file has 1 mistake."}]]
FAILURE, UNSERVED = "The file has 1 mistake.", "The adapter can't be served: it holds NaN"


def refuse(_: object) -> None:
    raise InvalidInput("it needs 80.0 GiB")


async def refuse_adapter(_: Path) -> None:
    raise InvalidInput("it holds NaN")


@pytest.mark.parametrize(
    ("script", "changes", "failure", "trained"),
    [
        (MISTAKEN, {}, ("invalid_validation_file", FAILURE, "validation_file"), 1),
        (MISTAKEN[1:], {}, ("training_failed", FAILURE, None), 1),
        (DONE, {"check_adapter": refuse_adapter}, ("training_failed", UNSERVED, None), 1),
        (DONE, {"spec": refuse}, ("not_trainable", "it needs 80.0 GiB", None), 0),
    ],
    ids=["mistakes in the rows", "an error", "no adapter to serve", "no model"],
)
async def test_what_can_not_be_trained_or_served_fails_and_publishes_nothing(
    tmp_path: Path,
    script: Script,
    changes: dict[str, Any],
    failure: tuple[str, str, str | None],
    trained: int,
) -> None:
    fine_tune = fine_tune_at(tmp_path, script)
    assert await run(fine_tune, ScriptedWorkshop(tmp_path, **changes)) == "ended"
    assert (failure_of(fine_tune), adapters(tmp_path)) == (failure, [])
    assert len(pids(fine_tune)) == trained


@pytest.mark.parametrize("script", [WAITS, DEAF], ids=["listens", "deaf"])
async def test_a_cancel_ends_it_and_leaves_no_adapter(tmp_path: Path, script: Script) -> None:
    fine_tune, task, _ = await begin(tmp_path, script)
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert outcome(fine_tune, tmp_path) == ("cancelled", [], [])


async def test_a_cancel_while_the_adapter_is_checked_leaves_none(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)

    async def check(_: Path) -> None:
        fine_tune.cancel()

    await run(fine_tune, ScriptedWorkshop(tmp_path, check_adapter=check))
    assert outcome(fine_tune, tmp_path) == ("cancelled", [], [])


async def test_a_cancel_does_not_wait_for_the_checkpoint_of_a_pause(tmp_path: Path) -> None:
    fine_tune, task, attempt = await begin(tmp_path, DEAF)
    fine_tune.pause()
    await eventually((attempt / "heard").exists)
    assert not task.done()
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert outcome(fine_tune, tmp_path) == ("cancelled", [], [])


@pytest.fixture
def passed_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return seconds, of which the last are those that a runner's clock is ahead."""
    passed_s = [0.0]
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed_s[-1])
    for module in ("fine_tunes.step", "long_work.attempt"):
        monkeypatch.setattr(f"worker.{module}.time", clock)
    return passed_s


async def test_a_trainer_that_writes_no_checkpoint_in_its_time_is_killed(
    tmp_path: Path, passed_s: list[float]
) -> None:
    fine_tune, task, attempt = await begin(tmp_path, DEAF, DONE)
    fine_tune.pause()
    # It is asked before, and that it has to be killed is no crash.
    await eventually((attempt / "heard").exists)
    passed_s.append(10 * HUNG_S)
    assert await asyncio.wait_for(task, HUNG_S) == "paused"
    assert outcome(fine_tune, tmp_path) == ("paused", [], [])
    fine_tune.resume()
    assert await run(fine_tune, ScriptedWorkshop(tmp_path)) == "ended"
    assert fine_tune.status == "succeeded"


async def test_a_pause_writes_a_checkpoint_from_which_another_job_goes_on(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, WAITS, DONE)
    workshop = ScriptedWorkshop(tmp_path)
    task = running(fine_tune, workshop)
    first = await begun(fine_tune)
    fine_tune.pause()
    assert await task == "paused"
    assert outcome(fine_tune, tmp_path) == ("paused", [], [])
    assert (first / "checkpoints" / "checkpoint-5").is_dir()
    assert await run(fine_tune, workshop) == "paused"
    fine_tune.resume()
    assert await run(fine_tune, workshop) == "ended"
    assert fine_tune.status == "succeeded"
    _, second = fine_tune.attempts()
    assert (second / "events.jsonl").read_text().startswith('{"resumed_at": 5}')


@pytest.mark.parametrize(
    ("closes", "passes_s"), [(True, 0), (False, 3600 - SPARE_S)], ids=["worker leaves", "time over"]
)
async def test_a_job_whose_time_is_over_or_whose_worker_leaves_hands_over_at_a_checkpoint(
    tmp_path: Path, closes: bool, passes_s: float, passed_s: list[float]
) -> None:
    closed_at = [math.inf]
    fine_tune = fine_tune_at(tmp_path, WAITS, DONE)
    task = running(fine_tune, ScriptedWorkshop(tmp_path), closed_at=lambda: closed_at[-1])
    await begun(fine_tune)
    closed_at.append(0.0 if closes else math.inf)
    passed_s.append(passes_s)
    assert await task == "left"
    assert outcome(fine_tune, tmp_path) == ("queued", [], [])
    assert await run(fine_tune, ScriptedWorkshop(tmp_path)) == "ended"
    assert len(fine_tune.attempts()) == 2


async def test_a_job_that_is_cancelled_leaves_no_process_and_no_lease(tmp_path: Path) -> None:
    fine_tune, task, _ = await begin(tmp_path, DEAF, DONE)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), alive(fine_tune), fine_tune.held()) == (True, [], False)
    assert await run(fine_tune, ScriptedWorkshop(tmp_path)) == "ended"


async def test_two_jobs_train_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, look = asyncio.Event(), Leases.look
    loop = asyncio.get_running_loop()

    def noted(leases: Leases) -> Claim | None:
        loop.call_soon_threadsafe(looked.set)
        return look(leases)

    monkeypatch.setattr(Leases, "look", noted)
    fine_tune = fine_tune_at(tmp_path, WAITS, DONE)
    one, other = (running(fine_tune, ScriptedWorkshop(tmp_path)) for _ in range(2))
    await begun(fine_tune)
    # Who looks at the lease has not got it.
    await looked.wait()
    fine_tune.pause()
    assert {await one, await other} == {"paused"}
    assert len(fine_tune.attempts()) == len(pids(fine_tune)) == 1


async def test_a_worker_that_has_lost_its_lease_ends_its_process_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.volume.lease.BEAT_S", 0.1)
    fine_tune, task, _ = await begin(tmp_path, DEAF, DONE)
    other = Leases(fine_tune.leases("run"), patience=0)
    other.look()
    with other.taken() as taken:
        assert taken
        await eventually(lambda: not alive(fine_tune))
        assert not task.done()
    assert await task == "ended"
    assert len(pids(fine_tune)) == 2


async def test_a_worker_trains_one_adapter_at_a_time_the_oldest_first(tmp_path: Path) -> None:
    shared = ScriptedWorkshop(tmp_path)
    first, younger, older, unwanted = (
        fine_tune_at(tmp_path, script, id=f"ftjob-{str(age) * 24}", created_at=10 - age)
        for age, script in enumerate((WAITS, DONE, DONE, DONE))
    )
    tasks = [running(first, shared)]
    await begun(first)
    tasks += [running(one, shared) for one in (younger, older, unwanted)]
    await eventually(lambda: len(shared.bench._waiting) == len(tasks))
    # One that waits is cancelled at once.
    unwanted.cancel()
    assert await asyncio.wait_for(tasks.pop(), HUNG_S) == "ended"
    assert (unwanted.status, unwanted.attempts(), tasks[0].done()) == ("cancelled", [], False)
    first.cancel()
    assert [await task for task in tasks] == ["ended"] * 3
    events = [one.attempts()[0] / "events.jsonl" for one in (older, younger)]
    began = [path.stat().st_mtime_ns for path in events]
    ended = [(one.directory / "result.json").stat().st_mtime_ns for one in (first, older)]
    # A disk's times are some milliseconds apart.
    assert ended[0] <= began[0] <= ended[1] <= began[1]
