"""Jobs of fine-tunes with a scripted trainer: start, cancellation, pause, resumption, and end."""

import asyncio
import json
import math
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fine_tunes import (
    CHECKED,
    COMMAND,
    DONE,
    Script,
    adapters,
    failure_of,
    records_of,
    result_of,
    run_attempt,
    running_trainers,
    scripted_fine_tune,
    start_attempt,
    trainer_pids,
)
from support.processes.background import HUNG_S, poll_until
from support.volume import fill, mount_disk

from worker.errors import EngineBusy, InvalidInput, VolumeError, WorkerError
from worker.fine_tunes.record import FineTune
from worker.fine_tunes.spec import SPEC_FILE
from worker.fine_tunes.step import WIND_DOWN_S
from worker.long_work.runner import RunOutcome, WorkLine
from worker.progress import Progress
from worker.routes.kinds import KINDS
from worker.volume.adapters import FILES
from worker.volume.lease import Claim, LeaseDirectory

WAITS: Script = [*CHECKED, ["wait"]]
DEAF: Script = [["deaf"], *CHECKED, ["wait"]]


async def wait_for_step(fine_tune: FineTune, count: int = 1) -> Path:
    """Wait until the newest attempt has done a step; return its directory."""

    def has_step() -> bool:
        attempts = fine_tune.attempt_paths()
        events = attempts[-1] / "events.jsonl" if len(attempts) == count else None
        return bool(events and events.is_file() and '"step": 5' in events.read_text())

    await poll_until(has_step)
    return fine_tune.attempt_paths()[-1]


async def start_training(
    root: Path, *scripts: Script, **changes: Any
) -> tuple[FineTune, asyncio.Task[RunOutcome], Path]:
    """Start training; return the fine-tune, its job, and the attempt after its first step."""
    fine_tune = scripted_fine_tune(root, *scripts)
    task = start_attempt(fine_tune, **changes, seconds=3600)
    return fine_tune, task, await wait_for_step(fine_tune)


def state(fine_tune: FineTune, root: Path) -> tuple[str, list[int], list[Path]]:
    """Return the status, the ids of running trainers, and the published adapters."""
    return fine_tune.status, running_trainers(fine_tune), adapters(root)


async def test_the_adapter_of_a_successful_training_is_published_under_its_name(
    tmp_path: Path,
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE, suffix="mine")
    progress = Progress()
    assert await run_attempt(fine_tune, progress=progress) == "ended"
    result = result_of(fine_tune)
    name = "demo.mine.231114-221320"
    assert (result.status, result.adapter, result.error) == ("succeeded", name, None)
    assert (result.trained_tokens, result.steps) == (7, 10)
    files = [records_of(fine_tune).files.get(id).filename for id in result.result_file_ids]
    assert files == ["step_metrics.csv", *FILES]
    # The best step's adapter is the result.
    checkpoints = [(checkpoint.step, checkpoint.name) for checkpoint in result.checkpoints]
    assert checkpoints == [(5, f"{name}.ckpt-5"), (10, name)]
    weights = "adapter_model.safetensors"
    published = {path.name: (path / weights).read_text() for path in adapters(tmp_path)}
    assert published == {name: "epoch 10", f"{name}.ckpt-5": "epoch 5"}
    assert progress.values == {"step": 10, "epoch": 1.0, "loss": 0.1}
    spec = json.loads((fine_tune.directory / SPEC_FILE).read_text())
    assert (spec["model"], spec["tokenizer"], spec["validation"]) == (*[str(tmp_path)] * 2, None)
    assert (spec["device"], spec["max_length"], spec["training"]["form"]) == ("cpu", 8, "csv")
    assert not running_trainers(fine_tune)
    assert not fine_tune.is_leased()


MISTAKE = {"file": "validation_file", "line": 3, "message": "no answer"}
MISTAKE_SCRIPT = [
    ["checked", {"mistakes": [MISTAKE]}],
    ["over", {"error": "The file has 1 mistake."}],
]
FAILURE, UNSERVABLE = "The file has 1 mistake.", "The adapter can't be served: it holds NaN"
NO_ADAPTER = "The training has produced no adapter."
QUANTISED = (
    "demo can't be fine-tuned: it is quantised, or not read from a directory. "
    "MODEL_NAME has to name the model in its own precision."
)


async def refuse_adapter(_: Path) -> None:
    raise InvalidInput("it holds NaN")


@pytest.mark.parametrize(
    ("script", "changes", "failure", "trainer_count"),
    [
        (MISTAKE_SCRIPT, {}, ("invalid_validation_file", FAILURE, "validation_file"), 1),
        (MISTAKE_SCRIPT[1:], {}, ("training_failed", FAILURE, None), 1),
        ([*CHECKED, ["over", {}]], {}, ("training_failed", NO_ADAPTER, None), 1),
        (DONE, {"check_adapter": refuse_adapter}, ("training_failed", UNSERVABLE, None), 1),
        (DONE, {"model": {"quantization": "awq"}}, ("not_trainable", QUANTISED, None), 0),
    ],
    ids=[
        "mistakes in the rows",
        "an error",
        "no adapter",
        "unservable adapter",
        "untrainable model",
    ],
)
async def test_a_fine_tune_that_can_not_be_trained_or_served_publishes_nothing(
    tmp_path: Path,
    script: Script,
    changes: dict[str, Any],
    failure: tuple[str, str, str | None],
    trainer_count: int,
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, script)
    assert await run_attempt(fine_tune, **changes) == "ended"
    assert (failure_of(fine_tune), adapters(tmp_path)) == (failure, [])
    assert len(trainer_pids(fine_tune)) == trainer_count


@pytest.mark.parametrize("script", [WAITS, DEAF], ids=["handles SIGTERM", "ignores SIGTERM"])
async def test_a_cancel_ends_the_training_without_an_adapter(
    tmp_path: Path, script: Script
) -> None:
    fine_tune, task, _ = await start_training(tmp_path, script)
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert state(fine_tune, tmp_path) == ("cancelled", [], [])


async def test_a_cancel_during_the_check_of_the_adapter_publishes_nothing(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)

    async def check(_: Path) -> None:
        fine_tune.cancel()

    await run_attempt(fine_tune, check_adapter=check)
    assert state(fine_tune, tmp_path) == ("cancelled", [], [])


async def test_a_cancel_does_not_wait_for_the_checkpoint_of_a_pause(tmp_path: Path) -> None:
    fine_tune, task, attempt = await start_training(tmp_path, DEAF)
    fine_tune.pause()
    await poll_until((attempt / "heard").exists)
    assert not task.done()
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert state(fine_tune, tmp_path) == ("cancelled", [], [])


@pytest.fixture
def clock_offsets_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return offsets of the runner's clock in seconds; the last one is in effect."""
    clock_offsets_s = [0.0]
    clock = SimpleNamespace(
        time=time.time, monotonic=lambda: time.monotonic() + clock_offsets_s[-1]
    )
    for module in ("fine_tunes.step", "long_work.runner"):
        monkeypatch.setattr(f"worker.{module}.time", clock)
    return clock_offsets_s


async def test_a_trainer_that_writes_no_checkpoint_in_time_is_killed(
    tmp_path: Path, clock_offsets_s: list[float]
) -> None:
    fine_tune, task, attempt = await start_training(tmp_path, DEAF, DONE)
    fine_tune.pause()
    # The trainer first receives SIGTERM, and the kill doesn't count as a crash.
    await poll_until((attempt / "heard").exists)
    clock_offsets_s.append(10 * HUNG_S)
    assert await asyncio.wait_for(task, HUNG_S) == "paused"
    assert state(fine_tune, tmp_path) == ("paused", [], [])
    fine_tune.resume()
    assert await run_attempt(fine_tune) == "ended"
    assert fine_tune.status == "succeeded"


async def test_another_job_resumes_from_the_checkpoint_of_a_pause(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, WAITS, DONE)
    task = start_attempt(fine_tune)
    first = await wait_for_step(fine_tune)
    fine_tune.pause()
    assert await task == "paused"
    assert state(fine_tune, tmp_path) == ("paused", [], [])
    assert (first / "checkpoints" / "checkpoint-5").is_dir()
    assert await run_attempt(fine_tune) == "paused"
    fine_tune.resume()
    assert await run_attempt(fine_tune) == "ended"
    assert fine_tune.status == "succeeded"
    _, second = fine_tune.attempt_paths()
    assert (second / "events.jsonl").read_text().startswith('{"resumed_at": 5}')


@pytest.mark.parametrize(
    ("worker_stops", "offset_s"),
    [(True, 0), (False, 3600 - WIND_DOWN_S)],
    ids=["worker stops", "time over"],
)
async def test_a_job_hands_over_at_a_checkpoint_when_its_time_is_over_or_its_worker_stops(
    tmp_path: Path, worker_stops: bool, offset_s: float, clock_offsets_s: list[float]
) -> None:
    closed_at = [math.inf]
    fine_tune = scripted_fine_tune(tmp_path, WAITS, DONE)
    task = start_attempt(fine_tune, closed_at=lambda: closed_at[-1])
    await wait_for_step(fine_tune)
    closed_at.append(0.0 if worker_stops else math.inf)
    clock_offsets_s.append(offset_s)
    assert await task == "left"
    assert state(fine_tune, tmp_path) == ("queued", [], [])
    assert await run_attempt(fine_tune) == "ended"
    assert len(fine_tune.attempt_paths()) == 2


async def test_a_cancelled_job_leaves_no_process_and_no_lease(tmp_path: Path) -> None:
    fine_tune, task, _ = await start_training(tmp_path, DEAF, DONE)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert running_trainers(fine_tune) == []
    assert not fine_tune.is_leased()
    assert await run_attempt(fine_tune) == "ended"


async def test_two_jobs_train_a_fine_tune_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled, poll = asyncio.Event(), LeaseDirectory.poll_claim
    loop = asyncio.get_running_loop()

    def record_poll(leases: LeaseDirectory) -> Claim | None:
        loop.call_soon_threadsafe(polled.set)
        return poll(leases)

    monkeypatch.setattr(LeaseDirectory, "poll_claim", record_poll)
    fine_tune = scripted_fine_tune(tmp_path, WAITS, DONE)
    first, second = (start_attempt(fine_tune) for _ in range(2))
    await wait_for_step(fine_tune)
    # Only a job without the lease polls it.
    await polled.wait()
    fine_tune.pause()
    assert {await first, await second} == {"paused"}
    assert len(fine_tune.attempt_paths()) == len(trainer_pids(fine_tune)) == 1


async def test_a_worker_that_has_lost_its_lease_stops_its_trainer_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.volume.lease.HEARTBEAT_S", 0.1)
    fine_tune, task, _ = await start_training(tmp_path, DEAF, DONE)
    other = LeaseDirectory(fine_tune.lease_directory("run"), max_unchanged=0)
    other.poll_claim()
    with other.acquire() as taken:
        assert taken
        await poll_until(lambda: not running_trainers(fine_tune))
        assert not task.done()
    assert await task == "ended"
    assert len(trainer_pids(fine_tune)) == 2


async def test_a_worker_trains_one_adapter_at_a_time_in_the_order_of_the_jobs(
    tmp_path: Path,
) -> None:
    line = WorkLine(KINDS["fine_tune"].places)
    first, *others = (
        scripted_fine_tune(tmp_path, script, id=f"ftjob-{str(number) * 24}")
        for number, script in enumerate((WAITS, DONE, DONE))
    )
    tasks = [start_attempt(first, line=line)]
    await wait_for_step(first)
    for number, fine_tune in enumerate(others, 1):
        tasks.append(start_attempt(fine_tune, line=line))
        await poll_until(lambda number=number: line.waiting_count == number)  # type: ignore[misc]  # its default
    assert not any(fine_tune.attempt_paths() for fine_tune in others)
    first.cancel()
    assert [await task for task in tasks] == ["ended"] * 3
    second, third = (fine_tune.attempt_paths()[0] / "events.jsonl" for fine_tune in others)
    # File times have a resolution of some milliseconds.
    ended_at = (others[0].directory / "result.json").stat().st_mtime_ns
    assert second.stat().st_mtime_ns <= ended_at <= third.stat().st_mtime_ns


# Failures of memory, the trainer, the volume or the worker

CRASH = ["exit", 1]
KILLED = ["kill", signal.SIGKILL]
# The trainer exits with this status on SIGTERM.
STOPPED = ["exit", 75]


def crashing_scripts(*steps: int, crash: list[object] = CRASH) -> list[Script]:
    """Return one script for each step: it writes a checkpoint of the step and crashes."""
    return [[*CHECKED, ["checkpoint", step], crash] for step in steps]


@pytest.mark.parametrize(
    ("scripts", "status", "attempts"),
    [
        *(
            ([*crashing_scripts(5, 6, crash=crash), DONE], "succeeded", 3)
            for crash in (CRASH, KILLED)
        ),
        (crashing_scripts(1, 2, 3, 4), "failed", 3),
        ([*crashing_scripts(5), [*CHECKED, CRASH], DONE], "failed", 2),
        *(([[*CHECKED, end], DONE], "succeeded", 2) for end in (KILLED, STOPPED)),
        *(([[*CHECKED, end], [*CHECKED, end], DONE], "failed", 2) for end in (KILLED, STOPPED)),
    ],
)
async def test_training_resumes_after_a_crash_with_progress_or_after_one_kill(
    tmp_path: Path, scripts: list[Script], status: str, attempts: int
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, *scripts)
    assert await run_attempt(fine_tune) == "ended"
    assert (result_of(fine_tune).status, len(fine_tune.attempt_paths())) == (status, attempts)


async def test_a_crash_without_progress_fails_with_the_trainers_message(tmp_path: Path) -> None:
    output = 'Traceback (most recent call last):\n  File "/opt/x.py"\nValueError: no /opt/weights\n'
    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["say", output], CRASH])
    await run_attempt(fine_tune)
    message = "The process that trains has crashed: ValueError: no ..."
    assert failure_of(fine_tune) == ("training_failed", message, None)
    assert len(fine_tune.attempt_paths()) == 1


@pytest.mark.parametrize(
    ("command", "error"),
    [
        # The trainer exits with status 74 if the volume is full.
        (COMMAND, VolumeError("The volume is full")),
        # The command is longer than the kernel allows.
        (("a" * (1 << 20),), EngineBusy("can't start another process")),
    ],
    ids=["full volume", "no process"],
)
async def test_another_job_continues_after_a_failure_of_the_volume_or_of_the_process_limit(
    tmp_path: Path, command: tuple[str, ...], error: WorkerError
) -> None:
    scripts = [[*CHECKED, ["exit", 74]]] if command == COMMAND else []
    fine_tune = scripted_fine_tune(tmp_path, *scripts, DONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.fine_tunes.step.COMMAND", command)
        with pytest.raises(type(error), match=error.message):
            await run_attempt(fine_tune)
    assert (fine_tune.status, fine_tune.is_leased()) == ("queued", False)
    assert await run_attempt(fine_tune) == "ended"
    assert result_of(fine_tune).status == "succeeded"


async def test_publishing_continues_once_a_full_disk_has_space_again(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    with mount_disk(tmp_path / "disk", 1 << 18) as disk:
        filler = fill(disk)
        with pytest.raises(VolumeError, match="full"):
            await run_attempt(fine_tune, base_path=disk)
        assert not [path for path in adapters(disk) if not path.name.startswith(".")]
        filler.unlink()
        assert await run_attempt(fine_tune, base_path=disk) == "ended"
        assert len(fine_tune.attempt_paths()) == 1
        names = sorted(str(checkpoint.name) for checkpoint in result_of(fine_tune).checkpoints)
        assert [path.name for path in adapters(disk)] == names


async def test_a_finished_training_whose_worker_died_before_publishing_is_not_repeated(
    tmp_path: Path,
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)

    async def wait_forever(_: Path) -> None:
        await asyncio.sleep(3600)

    task = start_attempt(fine_tune, check_adapter=wait_forever)

    def is_over() -> bool:
        outcomes = map(fine_tune.read_outcome, fine_tune.attempt_paths())
        return any(outcome and outcome.is_over for outcome in outcomes)

    await poll_until(is_over)
    task.cancel()
    await asyncio.wait({task})
    assert await run_attempt(fine_tune) == "ended"
    assert len(trainer_pids(fine_tune)) == 1
