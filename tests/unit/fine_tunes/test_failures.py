"""Jobs of fine-tunes when memory, the trainer, the volume or the worker fails."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from support.fine_tunes import (
    CHECKED,
    DONE,
    Script,
    ScriptedTrainingSetup,
    adapters,
    failure_of,
    result_of,
    run_attempt,
    scripted_fine_tune,
    start_attempt,
    trainer_pids,
)
from support.processes.background import poll_until
from support.volume import fill, mount_disk

from worker.errors import EngineBusy, VolumeError, WorkerError

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
            for crash in (CRASH, KILLED, ["kill", signal.SIGSEGV])
        ),
        (crashing_scripts(1, 2, 3, 4), "failed", 3),
        ([*crashing_scripts(5), [*CHECKED, CRASH], DONE], "failed", 2),
        *(([*[[*CHECKED, end]] * 1, DONE], "succeeded", 2) for end in (KILLED, STOPPED)),
        *(([*[[*CHECKED, end]] * 2, DONE], "failed", 2) for end in (KILLED, STOPPED)),
    ],
)
async def test_training_resumes_after_a_crash_with_progress_or_after_one_kill(
    tmp_path: Path, scripts: list[Script], status: str, attempts: int
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, *scripts)
    assert await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path)) == "ended"
    assert (result_of(fine_tune).status, len(fine_tune.attempt_paths())) == (status, attempts)


async def test_a_crash_without_progress_fails_with_the_trainers_message(tmp_path: Path) -> None:
    output = 'Traceback (most recent call last):\n  File "/opt/x.py"\nValueError: no /opt/weights\n'
    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["say", output], CRASH])
    await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path))
    message = "The process that trains has crashed: ValueError: no ..."
    assert failure_of(fine_tune) == ("training_failed", message, None)
    assert len(fine_tune.attempt_paths()) == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        # The trainer exits with status 74 if the volume is full.
        ({}, VolumeError("The volume is full")),
        # The command is longer than the kernel allows.
        ({"command": ("a" * (1 << 20),)}, EngineBusy("can't start another process")),
    ],
    ids=["full volume", "no process"],
)
async def test_another_job_continues_after_a_failure_of_the_volume_or_of_the_process_limit(
    tmp_path: Path, changes: dict[str, Any], error: WorkerError
) -> None:
    fine_tune = scripted_fine_tune(
        tmp_path, *([[*CHECKED, ["exit", 74]]] if not changes else []), DONE
    )
    with pytest.raises(type(error), match=error.message):
        await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, **changes))
    assert (fine_tune.status, fine_tune.is_leased()) == ("queued", False)
    assert await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path)) == "ended"
    assert result_of(fine_tune).status == "succeeded"


async def test_publishing_continues_once_a_full_disk_has_space_again(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    with mount_disk(tmp_path / "disk", 1 << 18) as disk:
        training_setup = ScriptedTrainingSetup(tmp_path, adapters_directory=disk / "adapters")
        filler = fill(disk)
        with pytest.raises(VolumeError, match="full"):
            await run_attempt(fine_tune, training_setup)
        assert not [path for path in adapters(disk) if not path.name.startswith(".")]
        filler.unlink()
        assert await run_attempt(fine_tune, training_setup) == "ended"
        assert len(fine_tune.attempt_paths()) == 1
        names = sorted(str(checkpoint.name) for checkpoint in result_of(fine_tune).checkpoints)
        assert [path.name for path in adapters(disk)] == names


async def test_a_finished_training_whose_worker_died_before_publishing_is_not_repeated(
    tmp_path: Path,
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)

    async def wait_forever(_: Path) -> None:
        await asyncio.sleep(3600)

    task = start_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, check_adapter=wait_forever))
    outcomes = fine_tune.directory / "attempts"
    await poll_until(lambda: any(outcomes.glob("*/outcome.json")))
    task.cancel()
    await asyncio.wait({task})
    assert await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path)) == "ended"
    assert len(trainer_pids(fine_tune)) == 1
