"""A job repeats steps until the work has ended or is paused, or until its time is over."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker.errors import VolumeError
from worker.long_work.attempt import Attempt
from worker.long_work.record import PAUSED, REQUEST, RESULT, Record, StoredRequest, TimedModel
from worker.long_work.records import Records
from worker.long_work.runner import run_steps

PAUSE, CANCEL = "pause.json", "cancel.json"


class Task(Record):
    """Long work of the tests."""

    kind = "batch"
    noun = "task"
    retention_start = None

    @property
    def request(self) -> StoredRequest:
        return self.read_required_file(REQUEST, StoredRequest)

    def stop_reason(self) -> str | None:
        if self.has_file(CANCEL):
            return "cancelled"
        return PAUSED if self.has_file(PAUSE) else None


class Tasks(Records[Task, StoredRequest]):
    """The tasks on a volume."""

    record_type = Task
    id_prefix, folder, id_param, input_purpose = "task-", "tasks", "id", "none"

    def end(self, record: Task, status: str) -> None:
        assert status == "cancelled"
        record.write_file(RESULT, TimedModel(at=1))


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(settings(FILES_PATH=str(tmp_path)))


@pytest.fixture
def task(tasks: Tasks) -> Task:
    return tasks.create(StoredRequest(id=tasks.id_for_job("job-1"), created_at=1))


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.long_work.runner.POLL_S", 0.0)


class Steps:
    """Runs one action per step, and returns whether the step did any work."""

    def __init__(self, *actions: Callable[[], object], did_work: bool = True) -> None:
        self.remaining, self.did_work = [*actions], did_work

    async def __call__(self, _: Attempt) -> bool:
        self.remaining.pop(0)()
        return self.did_work


def make_attempt(task: Task, seconds: float = 3600.0, closed_at: float = math.inf) -> Attempt:
    return Attempt(task, seconds, lambda: closed_at)


def do_nothing() -> None: ...


@pytest.mark.parametrize("did_work", [True, False])
@pytest.mark.parametrize(("name", "outcome"), [(RESULT, "ended"), (PAUSE, "paused")])
async def test_steps_are_repeated_until_the_work_has_ended_or_is_paused(
    tasks: Tasks, task: Task, name: str, outcome: str, did_work: bool
) -> None:
    steps = Steps(
        do_nothing,
        do_nothing,
        lambda: task.write_file(name, TimedModel(at=1)),
        did_work=did_work,
    )
    assert await run_steps(tasks, task, make_attempt(task), steps) == outcome
    assert steps.remaining == []
    assert await run_steps(tasks, task, make_attempt(task), steps) == outcome


@pytest.mark.parametrize(("did_work", "seconds"), [(True, 3600.0), (False, 0.1)])
async def test_the_runner_waits_only_after_steps_without_work(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch, did_work: bool, seconds: float
) -> None:
    monkeypatch.setattr("worker.long_work.runner.POLL_S", seconds)
    steps = Steps(do_nothing, lambda: task.write_file(RESULT, TimedModel(at=1)), did_work=did_work)
    started_at = time.monotonic()
    assert await asyncio.wait_for(run_steps(tasks, task, make_attempt(task), steps), 60) == "ended"
    assert did_work or time.monotonic() - started_at >= 2 * seconds


async def test_a_job_without_time_runs_one_step(tasks: Tasks, task: Task) -> None:
    for attempt in (make_attempt(task, -1.0), make_attempt(task, closed_at=time.monotonic())):
        assert await run_steps(tasks, task, attempt, Steps(do_nothing)) == "left"
    last_step = Steps(lambda: task.write_file(RESULT, TimedModel(at=1)))
    assert await run_steps(tasks, task, make_attempt(task, -1.0), last_step) == "ended"


async def test_cancelled_work_ends_unless_a_worker_has_its_lease(tasks: Tasks, task: Task) -> None:
    task.write_file(CANCEL, TimedModel(at=1))
    async with make_attempt(task).acquire_lease("run") as lease:
        assert lease
        assert not tasks.get_ended_if_due(task.id).has_ended()
    assert await run_steps(tasks, task, make_attempt(task), Steps()) == "ended"


def test_work_that_can_not_be_ended_is_returned_unchanged(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise VolumeError("the volume is full")

    task.write_file(CANCEL, TimedModel(at=1))
    monkeypatch.setattr(Tasks, "end", fail)
    assert not tasks.get_ended_if_due(task.id).has_ended()
    assert f"task {task.id} can't be ended: the volume is full" in caplog.text


def test_work_that_another_worker_has_just_ended_is_not_ended_again(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_meanwhile(_: Task, name: str = "*") -> bool:
        return not task.write_file(RESULT, TimedModel(at=1))

    ended: list[Task] = []
    task.write_file(CANCEL, TimedModel(at=1))
    monkeypatch.setattr(Task, "is_leased", end_meanwhile)
    monkeypatch.setattr(Tasks, "end", lambda _, task, status: ended.append(task))
    assert (tasks.end_if_due(task), ended) == (True, [])
