"""A job's work on a fine-tune when memory, the process, the volume or the worker fails."""

import asyncio
import signal
from pathlib import Path

import pytest
from support.disks import fill, mounted
from support.engine.scripted import until
from support.fine_tunes import (
    CHECKED,
    DONE,
    adapters,
    fine_tune_at,
    pids,
    result_of,
    run,
    running,
    workshop_at,
)

from worker.errors import VolumeError
from worker.fine_tunes.state import FineTune

CRASHES = ["exit", 1], ["kill", signal.SIGKILL], ["kill", signal.SIGSEGV]


@pytest.mark.parametrize("crash", CRASHES, ids=str)
async def test_a_crash_after_a_checkpoint_is_gone_on_from(
    tmp_path: Path, crash: list[object]
) -> None:
    crashing = [*CHECKED, ["checkpoint", 5], crash]
    fine_tune = fine_tune_at(tmp_path, crashing, [["checkpoint", 6], crash], DONE)
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"
    assert result_of(fine_tune).status == "succeeded"
    assert len(fine_tune.attempts()) == 3


async def test_one_that_crashes_again_and_again_fails(tmp_path: Path) -> None:
    crashing = [[*CHECKED, ["checkpoint", step], ["exit", 1]] for step in range(1, 9)]
    fine_tune = fine_tune_at(tmp_path, *crashing)
    await run(fine_tune, workshop_at(tmp_path))
    assert result_of(fine_tune).status == "failed"
    assert len(fine_tune.attempts()) == 3


async def test_one_that_crashes_at_the_same_step_fails_with_what_it_said(tmp_path: Path) -> None:
    said = 'Traceback (most recent call last):\n  File "/opt/x.py"\nValueError: no /opt/weights\n'
    fine_tune = fine_tune_at(tmp_path, [*CHECKED, ["say", said], ["exit", 1]])
    await run(fine_tune, workshop_at(tmp_path))
    assert len(fine_tune.attempts()) == 1
    error = result_of(fine_tune).error
    assert error
    assert (error.code, error.message) == (
        "training_failed",
        "The process that trains has crashed: ValueError: no ...",
    )


# The trainer itself ends with this status on SIGTERM.
ENDED = ["kill", signal.SIGKILL], ["exit", 75]


@pytest.mark.parametrize("end", ENDED, ids=str)
@pytest.mark.parametrize(("kills", "status"), [(1, "succeeded"), (2, "failed")])
async def test_one_that_is_killed_before_a_checkpoint_is_begun_once_more(
    tmp_path: Path, kills: int, status: str, end: list[object]
) -> None:
    killed = [*CHECKED, end]
    fine_tune = fine_tune_at(tmp_path, *[killed] * kills, DONE)
    await run(fine_tune, workshop_at(tmp_path))
    assert result_of(fine_tune).status == status
    assert len(fine_tune.attempts()) == 2


async def test_a_full_volume_ends_nothing_and_another_job_goes_on(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, [*CHECKED, ["exit", 74]], DONE)
    with pytest.raises(VolumeError):
        await run(fine_tune, workshop_at(tmp_path))
    assert (fine_tune.status, fine_tune.held()) == ("queued", False)
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"
    assert result_of(fine_tune).status == "succeeded"


async def test_a_disk_that_is_full_when_it_is_published_is_gone_on_from(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)
    with mounted(tmp_path / "disk", 1 << 18) as disk:
        workshop = workshop_at(tmp_path, adapters=disk / "adapters")
        filler = fill(disk)
        with pytest.raises(VolumeError, match="full"):
            await run(fine_tune, workshop)
        assert not [path for path in adapters(disk) if not path.name.startswith(".")]
        filler.unlink()
        assert await run(fine_tune, workshop) == "ended"
        assert len(fine_tune.attempts()) == 1
        result = result_of(fine_tune)
        assert sorted(path.name for path in adapters(disk)) == sorted(
            str(one.name) for one in result.checkpoints
        )


async def test_the_mark_of_a_name_is_gone_before_the_end_after_which_nobody_removes_it(
    tmp_path: Path,
) -> None:
    there: list[str] = []

    def results(_: FineTune) -> tuple[str, ...]:
        there.extend(path.name for path in adapters(tmp_path))
        return ()

    fine_tune = fine_tune_at(tmp_path, DONE)
    await run(fine_tune, workshop_at(tmp_path, results=results))
    assert there == sorted(str(one.name) for one in result_of(fine_tune).checkpoints)


async def test_a_training_that_had_ended_is_not_begun_again(tmp_path: Path) -> None:
    """Its worker died before the adapter was published."""
    fine_tune = fine_tune_at(tmp_path, DONE)

    async def never(_: Path) -> None:
        await asyncio.sleep(3600)

    task = running(fine_tune, workshop_at(tmp_path, check=never))
    outcomes = fine_tune.directory / "attempts"
    assert await until(lambda: any(outcomes.glob("*/outcome.json")))
    task.cancel()
    await asyncio.wait({task})
    assert await run(fine_tune, workshop_at(tmp_path)) == "ended"
    assert len(pids(fine_tune)) == 1
