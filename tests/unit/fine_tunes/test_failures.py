"""A job's work on a fine-tune when memory, the process, the volume or the worker fails."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from support.fine_tunes import (
    CHECKED,
    DONE,
    Script,
    ScriptedWorkshop,
    adapters,
    failure_of,
    fine_tune_at,
    pids,
    result_of,
    run,
    running,
)
from support.processes.background import eventually
from support.volume.disks import fill, mounted

from worker.errors import EngineBusy, VolumeError, WorkerError

EXITS = ["exit", 1]
KILLED = ["kill", signal.SIGKILL]
# The trainer itself ends with this status on SIGTERM.
STOPPED = ["exit", 75]


def crashing(*steps: int, crash: list[object] = EXITS) -> list[Script]:
    """Return attempts that crash after a checkpoint of a step."""
    return [[*CHECKED, ["checkpoint", step], crash] for step in steps]


@pytest.mark.parametrize(
    ("scripts", "status", "attempts"),
    [
        *(
            ([*crashing(5, 6, crash=crash), DONE], "succeeded", 3)
            for crash in (EXITS, KILLED, ["kill", signal.SIGSEGV])
        ),
        (crashing(1, 2, 3, 4), "failed", 3),
        ([*crashing(5), [*CHECKED, EXITS], DONE], "failed", 2),
        *(([*[[*CHECKED, end]] * 1, DONE], "succeeded", 2) for end in (KILLED, STOPPED)),
        *(([*[[*CHECKED, end]] * 2, DONE], "failed", 2) for end in (KILLED, STOPPED)),
    ],
)
async def test_a_crash_is_gone_on_from_if_the_training_comes_further_or_was_killed_once(
    tmp_path: Path, scripts: list[Script], status: str, attempts: int
) -> None:
    fine_tune = fine_tune_at(tmp_path, *scripts)
    assert await run(fine_tune, ScriptedWorkshop(tmp_path)) == "ended"
    assert (result_of(fine_tune).status, len(fine_tune.attempts())) == (status, attempts)


async def test_one_that_crashes_at_the_same_step_fails_with_what_it_said(tmp_path: Path) -> None:
    said = 'Traceback (most recent call last):\n  File "/opt/x.py"\nValueError: no /opt/weights\n'
    fine_tune = fine_tune_at(tmp_path, [*CHECKED, ["say", said], EXITS])
    await run(fine_tune, ScriptedWorkshop(tmp_path))
    message = "The process that trains has crashed: ValueError: no ..."
    assert failure_of(fine_tune) == ("training_failed", message, None)
    assert len(fine_tune.attempts()) == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        # The trainer's status for a full volume.
        ({}, VolumeError("The volume is full")),
        # A command that is longer than an argument may be.
        ({"command": ("a" * (1 << 20),)}, EngineBusy("no room for a further process")),
    ],
    ids=["full volume", "no process"],
)
async def test_what_another_worker_may_not_lack_ends_nothing_and_another_job_goes_on(
    tmp_path: Path, changes: dict[str, Any], error: WorkerError
) -> None:
    fine_tune = fine_tune_at(tmp_path, *([[*CHECKED, ["exit", 74]]] if not changes else []), DONE)
    with pytest.raises(type(error), match=error.message):
        await run(fine_tune, ScriptedWorkshop(tmp_path, **changes))
    assert (fine_tune.status, fine_tune.held()) == ("queued", False)
    assert await run(fine_tune, ScriptedWorkshop(tmp_path)) == "ended"
    assert result_of(fine_tune).status == "succeeded"


async def test_a_disk_that_is_full_when_it_is_published_is_gone_on_from(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)
    with mounted(tmp_path / "disk", 1 << 18) as disk:
        workshop = ScriptedWorkshop(tmp_path, adapters=disk / "adapters")
        filler = fill(disk)
        with pytest.raises(VolumeError, match="full"):
            await run(fine_tune, workshop)
        assert not [path for path in adapters(disk) if not path.name.startswith(".")]
        filler.unlink()
        assert await run(fine_tune, workshop) == "ended"
        assert len(fine_tune.attempts()) == 1
        names = sorted(str(one.name) for one in result_of(fine_tune).checkpoints)
        assert [path.name for path in adapters(disk)] == names


async def test_a_training_that_had_ended_is_not_begun_again(tmp_path: Path) -> None:
    """Its worker died before the adapter was published."""
    fine_tune = fine_tune_at(tmp_path, DONE)

    async def never(_: Path) -> None:
        await asyncio.sleep(3600)

    task = running(fine_tune, ScriptedWorkshop(tmp_path, check_adapter=never))
    outcomes = fine_tune.directory / "attempts"
    await eventually(lambda: any(outcomes.glob("*/outcome.json")))
    task.cancel()
    await asyncio.wait({task})
    assert await run(fine_tune, ScriptedWorkshop(tmp_path)) == "ended"
    assert len(pids(fine_tune)) == 1
