"""A job repeats a step until the work has ended or is paused, or its time is over."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker.errors import VolumeError
from worker.long_work.attempt import Attempt
from worker.long_work.record import PAUSED, REQUEST, RESULT, Moment, Record, StoredRequest
from worker.long_work.records import Records
from worker.long_work.runner import run

PAUSE, CANCEL = "pause.json", "cancel.json"


class Task(Record):
    """Work that a test does."""

    kind = "batch"
    noun = "task"
    over_at = None

    @property
    def request(self) -> StoredRequest:
        return self.require(REQUEST, StoredRequest)

    def stopping(self) -> str | None:
        if self.has(CANCEL):
            return "cancelled"
        return PAUSED if self.has(PAUSE) else None


class Tasks(Records[Task, StoredRequest]):
    """All such work."""

    record = Task
    prefix, folder, param, purpose = "task-", "tasks", "id", "none"

    def end(self, one: Task, how: str) -> None:
        assert how == "cancelled"
        one.write(RESULT, Moment(at=1))


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(settings(FILES_PATH=str(tmp_path)))


@pytest.fixture
def task(tasks: Tasks) -> Task:
    return tasks.create(StoredRequest(id=tasks.id_of("job-1"), created_at=1))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.long_work.runner.LOOK_S", 0.0)


class Steps:
    """Does a thing at each step, and says whether it did a part of the work."""

    def __init__(self, *does: Callable[[], object], did: bool = True) -> None:
        self.left, self.did = [*does], did

    async def __call__(self, _: Attempt) -> bool:
        self.left.pop(0)()
        return self.did


def attempt(task: Task, seconds: float = 3600.0, closed_at: float = math.inf) -> Attempt:
    return Attempt(task, seconds, lambda: closed_at)


def nothing() -> None: ...


@pytest.mark.parametrize("did", [True, False])
@pytest.mark.parametrize(("name", "how"), [(RESULT, "ended"), (PAUSE, "paused")])
async def test_steps_are_done_until_the_work_has_ended_or_is_paused(
    tasks: Tasks, task: Task, name: str, how: str, did: bool
) -> None:
    steps = Steps(nothing, nothing, lambda: task.write(name, Moment(at=1)), did=did)
    assert await run(tasks, task, attempt(task), steps) == how
    assert steps.left == []
    assert await run(tasks, task, attempt(task), steps) == how


@pytest.mark.parametrize(("did", "seconds"), [(True, 3600.0), (False, 0.1)])
async def test_only_a_step_that_others_are_at_is_waited_for(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch, did: bool, seconds: float
) -> None:
    monkeypatch.setattr("worker.long_work.runner.LOOK_S", seconds)
    steps = Steps(nothing, lambda: task.write(RESULT, Moment(at=1)), did=did)
    begun = time.monotonic()
    assert await asyncio.wait_for(run(tasks, task, attempt(task), steps), 60) == "ended"
    assert did or time.monotonic() - begun >= 2 * seconds


async def test_of_a_job_without_time_one_step_is_done(tasks: Tasks, task: Task) -> None:
    for over in (attempt(task, -1.0), attempt(task, closed_at=time.monotonic())):
        assert await run(tasks, task, over, Steps(nothing)) == "left"
    last = Steps(lambda: task.write(RESULT, Moment(at=1)))
    assert await run(tasks, task, attempt(task, -1.0), last) == "ended"


async def test_cancelled_work_ends_unless_a_worker_is_at_it(tasks: Tasks, task: Task) -> None:
    task.write(CANCEL, Moment(at=1))
    async with attempt(task).lease("run") as lease:
        assert lease
        assert not tasks.get_settled(task.id).ended()
    assert await run(tasks, task, attempt(task), Steps()) == "ended"


def test_work_that_can_not_be_ended_is_found_as_it_is(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise VolumeError("the volume is full")

    task.write(CANCEL, Moment(at=1))
    monkeypatch.setattr(Tasks, "end", fail)
    assert not tasks.get_settled(task.id).ended()
    assert f"task {task.id} can't be ended: the volume is full" in caplog.text


def test_work_that_another_worker_has_just_ended_is_not_ended_again(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_meanwhile(_: Task, name: str = "*") -> bool:
        return not task.write(RESULT, Moment(at=1))

    ended: list[Task] = []
    task.write(CANCEL, Moment(at=1))
    monkeypatch.setattr(Task, "held", ends_meanwhile)
    monkeypatch.setattr(Tasks, "end", lambda _, one, how: ended.append(one))
    assert (tasks.settle(task), ended) == (True, [])
