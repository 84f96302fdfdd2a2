"""Room for a training: made by what is beside it once the rows are right, or waited for."""

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
    ScriptedWorkshop,
    failure_of,
    fine_tune_at,
    pids,
    run,
    running,
)
from support.processes.background import HUNG_S, eventually

from trainer.spec import ONLY_CHECK, Spec
from worker.errors import EngineDead, InvalidInput, VolumeError
from worker.fine_tunes.child import Child
from worker.fine_tunes.memory import MemoryTaken
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.step import SPARE_S
from worker.fine_tunes.workshop import Workshop


class Memory:
    """Stands for the engine's memory, which a training has to itself."""

    def __init__(self, *, free: bool = True, back: Callable[[], object] = bool) -> None:
        self.log: list[str] = []
        self._back = back
        self._free = asyncio.Event()
        if free:
            self._free.set()

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        self.log.append("asked")
        try:
            await self._free.wait()
            self.log.append("free")
            yield
        finally:
            self.log.append("back")
            self._back()


def test_a_training_is_of_the_served_model_and_needs_a_volume(
    fine_tunes: FineTunes, fine_tune: FineTune, tmp_path: Path
) -> None:
    with ScriptedEngine() as engine:
        engine.model = replace(engine.model, place=tmp_path, max_model_len=64)
        spec = Workshop(fine_tunes, engine, settings(BASE_PATH=str(tmp_path))).spec(fine_tune)
        assert (spec.model, spec.tokenizer, spec.max_length) == (tmp_path, tmp_path, 64)
        assert (spec.device, spec.training.form, spec.validation) == ("cpu", "csv", None)
        workshop = Workshop(fine_tunes, engine, settings(BASE_PATH=str(tmp_path / "none")))
        with pytest.raises(VolumeError, match="set BASE_PATH"):
            workshop.spec(fine_tune)


async def test_an_adapter_is_trained_in_the_room_and_published_beside(tmp_path: Path) -> None:
    memory = Memory()

    async def check(_: Path) -> None:
        memory.log.append("checked")

    fine_tune = fine_tune_at(tmp_path, [*CHECKED, ["checkpoint", 5], ["exit", 1]], DONE)
    assert (
        await run(fine_tune, ScriptedWorkshop(tmp_path, room=memory.room, check_adapter=check))
        == "ended"
    )
    assert memory.log == ["asked", "free", "back", "checked"]


async def test_what_is_cancelled_while_room_is_made_is_not_trained(tmp_path: Path) -> None:
    memory = Memory(free=False)
    fine_tune = fine_tune_at(tmp_path, DONE)
    task = running(fine_tune, ScriptedWorkshop(tmp_path, room=memory.room))
    await eventually(lambda: memory.log)
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert memory.log == ["asked", "back"]
    assert (fine_tune.status, pids(fine_tune)) == ("cancelled", [])


async def test_what_is_cancelled_has_ended_before_the_engine_is_back(tmp_path: Path) -> None:
    statuses: list[str] = []
    memory = Memory(back=lambda: statuses.append(fine_tune.status))
    fine_tune = fine_tune_at(tmp_path, [*CHECKED, ["wait"]])
    task = running(fine_tune, ScriptedWorkshop(tmp_path, room=memory.room))
    await eventually(lambda: pids(fine_tune) != [])
    fine_tune.cancel()
    assert await task == "ended"
    assert statuses == ["cancelled"]


async def test_room_that_can_not_be_made_is_the_error_of_the_job_alone(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def room() -> AsyncIterator[None]:
        raise EngineDead
        yield

    fine_tune = fine_tune_at(tmp_path, DONE)
    with pytest.raises(EngineDead):
        await run(fine_tune, ScriptedWorkshop(tmp_path, room=room))
    assert (fine_tune.status, pids(fine_tune)) == ("queued", [])


async def test_a_job_whose_time_is_over_does_not_wait_for_the_engine(tmp_path: Path) -> None:
    back = asyncio.Event()

    @contextlib.asynccontextmanager
    async def room() -> AsyncIterator[None]:
        yield
        await back.wait()

    fine_tune = fine_tune_at(tmp_path, [*CHECKED, ["step", 5], ["wait"]])
    task = running(fine_tune, ScriptedWorkshop(tmp_path, room=room), seconds=SPARE_S + 1)
    assert await asyncio.wait_for(task, HUNG_S) == "left"
    assert not fine_tune.held()
    back.set()


async def test_for_rows_that_are_wrong_no_room_is_made(tmp_path: Path) -> None:
    memory = Memory()
    mistake = {"file": "training_file", "line": 3, "message": "no answer"}
    fine_tune = fine_tune_at(tmp_path, [["checked", {"mistakes": [mistake]}]])
    assert await run(fine_tune, ScriptedWorkshop(tmp_path, room=memory.room)) == "ended"
    assert (failure_of(fine_tune)[0], memory.log) == ("invalid_training_file", [])


async def test_checked_rows_are_not_looked_at_before_there_is_room(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)
    for _ in range(2):
        memory = Memory(free=False)
        task = running(fine_tune, ScriptedWorkshop(tmp_path, room=memory.room))
        await eventually(lambda log=memory.log: bool(log))  # type: ignore[misc]  # its default
        task.cancel()
        await asyncio.wait({task})
    assert len(fine_tune.attempts()) == 1


async def test_while_rows_are_checked_requests_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, started = [], Child.started

    async def noted(command: Sequence[str], *, nice: bool, wandb: bool) -> Child:
        begun.append((ONLY_CHECK in command, nice))
        return await started(command, nice=nice, wandb=wandb)

    monkeypatch.setattr(Child, "started", noted)
    await run(
        fine_tune_at(tmp_path, DONE), ScriptedWorkshop(tmp_path, room=Memory().room, nice=False)
    )
    assert begun == [(True, True), (False, False)]


def refuse(_: Spec) -> None:
    raise InvalidInput("it needs 8.0 GiB")


def taken(looks: float) -> Callable[[Spec], None]:
    """Return the memory that others have for so many looks."""
    left = [looks]

    def fits(_: Spec) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryTaken("it needs 8.0 GiB")

    return fits


async def test_memory_that_others_have_for_the_moment_is_waited_for(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)
    await run(fine_tune, ScriptedWorkshop(tmp_path, check_memory=taken(3)))
    assert fine_tune.status == "succeeded"


@pytest.mark.parametrize(
    ("fits", "asked"),
    [(refuse, []), (taken(math.inf), ["asked", "free", "back"])],
    ids=["never", "not now"],
)
async def test_memory_that_does_not_suffice_is_the_failure_and_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: Callable[[Spec], None], asked: list[str]
) -> None:
    monkeypatch.setattr("worker.fine_tunes.workshop.MEMORY_S", 0.1)
    fine_tune, memory = fine_tune_at(tmp_path, DONE), Memory()
    await run(fine_tune, ScriptedWorkshop(tmp_path, room=memory.room, check_memory=fits))
    assert failure_of(fine_tune) == ("not_trainable", "it needs 8.0 GiB", None)
    assert (memory.log, pids(fine_tune)) == (asked, [])


async def test_one_that_waits_for_memory_is_cancelled(tmp_path: Path) -> None:
    fine_tune = fine_tune_at(tmp_path, DONE)

    def fits(_: Spec) -> None:
        if fine_tune.stopping() is None:
            fine_tune.cancel()
        raise MemoryTaken("it needs 8.0 GiB")

    job = run(fine_tune, ScriptedWorkshop(tmp_path, check_memory=fits))
    assert await asyncio.wait_for(job, HUNG_S) == "ended"
    assert fine_tune.status == "cancelled"
