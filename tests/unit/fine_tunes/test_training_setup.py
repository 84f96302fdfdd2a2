"""Memory of trainings: reserved once the rows are checked, or waited for."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine.scripted import ScriptedEngine, settings
from support.fine_tunes import (
    CHECKED,
    DONE,
    ScriptedTrainingSetup,
    failure_of,
    run_attempt,
    scripted_fine_tune,
    start_attempt,
    trainer_pids,
)
from support.processes.background import HUNG_S, poll_until

from worker.errors import EngineDead, InvalidInput, VolumeError
from worker.fine_tunes.child import TrainerProcess
from worker.fine_tunes.memory import MemoryInUse
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.spec import CHECK_OPTION, Spec
from worker.fine_tunes.step import WIND_DOWN_S
from worker.fine_tunes.training_setup import TrainingSetup


class Memory:
    """A fake of the engine's memory that logs reservations."""

    def __init__(self, *, is_free: bool = True, on_release: Callable[[], object] = bool) -> None:
        self.log: list[str] = []
        self._on_release = on_release
        self._free = asyncio.Event()
        if is_free:
            self._free.set()

    @contextlib.asynccontextmanager
    async def reserve(self) -> AsyncIterator[None]:
        self.log.append("requested")
        try:
            await self._free.wait()
            self.log.append("acquired")
            yield
        finally:
            self.log.append("released")
            self._on_release()


def test_a_training_uses_the_served_model_and_needs_a_volume(
    fine_tunes: FineTunes, fine_tune: FineTune, tmp_path: Path
) -> None:
    with ScriptedEngine() as engine:
        engine.model = replace(engine.model, directory=tmp_path, max_model_len=64)
        spec = TrainingSetup(fine_tunes, engine, settings(BASE_PATH=str(tmp_path))).make_spec(
            fine_tune
        )
        assert (spec.model, spec.tokenizer, spec.max_length) == (tmp_path, tmp_path, 64)
        assert (spec.device, spec.training.form, spec.validation) == ("cpu", "csv", None)
        training_setup = TrainingSetup(
            fine_tunes, engine, settings(BASE_PATH=str(tmp_path / "none"))
        )
        with pytest.raises(VolumeError, match="set BASE_PATH"):
            training_setup.make_spec(fine_tune)


async def test_memory_is_reserved_for_the_training_but_not_for_publishing(tmp_path: Path) -> None:
    memory = Memory()

    async def check(_: Path) -> None:
        memory.log.append("checked")

    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["checkpoint", 5], ["exit", 1]], DONE)
    assert (
        await run_attempt(
            fine_tune,
            ScriptedTrainingSetup(tmp_path, reserve_memory=memory.reserve, check_adapter=check),
        )
        == "ended"
    )
    assert memory.log == ["requested", "acquired", "released", "checked"]


async def test_a_fine_tune_that_is_cancelled_while_memory_is_freed_is_not_trained(
    tmp_path: Path,
) -> None:
    memory = Memory(is_free=False)
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    task = start_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, reserve_memory=memory.reserve))
    await poll_until(lambda: memory.log)
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert memory.log == ["requested", "released"]
    assert (fine_tune.status, trainer_pids(fine_tune)) == ("cancelled", [])


async def test_a_cancelled_fine_tune_has_ended_before_its_memory_is_released(
    tmp_path: Path,
) -> None:
    statuses: list[str] = []
    memory = Memory(on_release=lambda: statuses.append(fine_tune.status))
    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["wait"]])
    task = start_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, reserve_memory=memory.reserve))
    await poll_until(lambda: trainer_pids(fine_tune) != [])
    fine_tune.cancel()
    assert await task == "ended"
    assert statuses == ["cancelled"]


async def test_a_failed_reservation_of_memory_fails_only_the_job(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def reserve() -> AsyncIterator[None]:
        raise EngineDead
        yield

    fine_tune = scripted_fine_tune(tmp_path, DONE)
    with pytest.raises(EngineDead):
        await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, reserve_memory=reserve))
    assert (fine_tune.status, trainer_pids(fine_tune)) == ("queued", [])


async def test_a_job_whose_time_is_over_does_not_wait_for_the_engine(tmp_path: Path) -> None:
    release = asyncio.Event()

    @contextlib.asynccontextmanager
    async def reserve() -> AsyncIterator[None]:
        yield
        await release.wait()

    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["step", 5], ["wait"]])
    task = start_attempt(
        fine_tune, ScriptedTrainingSetup(tmp_path, reserve_memory=reserve), seconds=WIND_DOWN_S + 1
    )
    assert await asyncio.wait_for(task, HUNG_S) == "left"
    assert not fine_tune.is_leased()
    release.set()


async def test_no_memory_is_reserved_for_wrong_rows(tmp_path: Path) -> None:
    memory = Memory()
    mistake = {"file": "training_file", "line": 3, "message": "no answer"}
    fine_tune = scripted_fine_tune(tmp_path, [["checked", {"mistakes": [mistake]}]])
    assert (
        await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, reserve_memory=memory.reserve))
        == "ended"
    )
    assert (failure_of(fine_tune)[0], memory.log) == ("invalid_training_file", [])


async def test_rows_are_not_checked_again_while_jobs_wait_for_memory(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    for _ in range(2):
        memory = Memory(is_free=False)
        task = start_attempt(
            fine_tune, ScriptedTrainingSetup(tmp_path, reserve_memory=memory.reserve)
        )
        await poll_until(lambda log=memory.log: bool(log))  # type: ignore[misc]  # its default
        task.cancel()
        await asyncio.wait({task})
    assert len(fine_tune.attempt_paths()) == 1


async def test_rows_are_checked_at_a_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, start = [], TrainerProcess.start

    async def record_start(
        command: Sequence[str], *, low_priority: bool, wandb: bool
    ) -> TrainerProcess:
        starts.append((CHECK_OPTION in command, low_priority))
        return await start(command, low_priority=low_priority, wandb=wandb)

    monkeypatch.setattr(TrainerProcess, "start", record_start)
    await run_attempt(
        scripted_fine_tune(tmp_path, DONE),
        ScriptedTrainingSetup(tmp_path, reserve_memory=Memory().reserve, low_priority=False),
    )
    assert starts == [(True, True), (False, False)]


def refuse(_: Spec) -> None:
    raise InvalidInput("it needs 8.0 GiB")


def fail_first(count: float) -> Callable[[Spec], None]:
    """Return a check of the memory that fails the first ``count`` times."""
    remaining = [count]

    def check(_: Spec) -> None:
        remaining[0] -= 1
        if remaining[0] >= 0:
            raise MemoryInUse("it needs 8.0 GiB")

    return check


async def test_a_training_waits_for_memory_that_is_temporarily_in_use(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    await run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, check_memory=fail_first(3)))
    assert fine_tune.status == "succeeded"


@pytest.mark.parametrize(
    ("check", "log"),
    [(refuse, []), (fail_first(math.inf), ["requested", "acquired", "released"])],
    ids=["never", "not now"],
)
async def test_insufficient_memory_fails_the_fine_tune_without_starting_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[Spec], None], log: list[str]
) -> None:
    monkeypatch.setattr("worker.fine_tunes.training_setup.MEMORY_TIMEOUT_S", 0.1)
    fine_tune, memory = scripted_fine_tune(tmp_path, DONE), Memory()
    await run_attempt(
        fine_tune,
        ScriptedTrainingSetup(tmp_path, reserve_memory=memory.reserve, check_memory=check),
    )
    assert failure_of(fine_tune) == ("not_trainable", "it needs 8.0 GiB", None)
    assert (memory.log, trainer_pids(fine_tune)) == (log, [])


async def test_a_fine_tune_that_waits_for_memory_can_be_cancelled(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)

    def check(_: Spec) -> None:
        if fine_tune.stop_reason() is None:
            fine_tune.cancel()
        raise MemoryInUse("it needs 8.0 GiB")

    job = run_attempt(fine_tune, ScriptedTrainingSetup(tmp_path, check_memory=check))
    assert await asyncio.wait_for(job, HUNG_S) == "ended"
    assert fine_tune.status == "cancelled"
