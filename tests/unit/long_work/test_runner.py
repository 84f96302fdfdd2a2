"""Turns: leases with one owner, and steps that are repeated until the work has ended."""

import asyncio
import errno
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import settings
from support.processes.background import HUNG_S, poll_until
from support.volume import all_records, mount_disk, remount

from worker.errors import VolumeError
from worker.long_work.records import (
    PAUSED,
    REQUEST,
    RESULT,
    Record,
    Records,
    StoredRequest,
    TimedModel,
)
from worker.long_work.runner import RunOutcome, Step, Turn, WorkLine, run_steps
from worker.volume.lease import HEARTBEAT_S, MAX_UNCHANGED_POLLS, POLL_S, LeaseDirectory

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

    async def __call__(self, _: Turn) -> bool:
        self.remaining.pop(0)()
        return self.did_work


def make_turn(task: Task, seconds: float = 3600.0, closed_at: float = math.inf) -> Turn:
    return Turn(task, seconds, lambda: closed_at)


async def run(
    tasks: Tasks, task: Task, turn: Turn, steps: Step, line: WorkLine | None = None
) -> RunOutcome:
    return await run_steps(tasks, task, turn, steps, line or WorkLine(1))


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
    assert await run(tasks, task, make_turn(task), steps) == outcome
    assert steps.remaining == []
    assert await run(tasks, task, make_turn(task), steps) == outcome


@pytest.mark.parametrize(("did_work", "seconds"), [(True, 3600.0), (False, 0.1)])
async def test_the_runner_waits_only_after_steps_without_work(
    tasks: Tasks, task: Task, monkeypatch: pytest.MonkeyPatch, did_work: bool, seconds: float
) -> None:
    monkeypatch.setattr("worker.long_work.runner.POLL_S", seconds)
    steps = Steps(do_nothing, lambda: task.write_file(RESULT, TimedModel(at=1)), did_work=did_work)
    started_at = time.monotonic()
    assert await asyncio.wait_for(run(tasks, task, make_turn(task), steps), 60) == "ended"
    assert did_work or time.monotonic() - started_at >= 2 * seconds


async def test_a_job_without_time_runs_one_step(tasks: Tasks, task: Task) -> None:
    for turn in (make_turn(task, -1.0), make_turn(task, closed_at=time.monotonic())):
        assert await run(tasks, task, turn, Steps(do_nothing)) == "left"
    last_step = Steps(lambda: task.write_file(RESULT, TimedModel(at=1)))
    assert await run(tasks, task, make_turn(task, -1.0), last_step) == "ended"


async def test_cancelled_work_ends_unless_a_worker_has_its_lease(tasks: Tasks, task: Task) -> None:
    task.write_file(CANCEL, TimedModel(at=1))
    async with make_turn(task).acquire_lease("run") as lease:
        assert lease
        assert not tasks.get_ended_if_due(task.id).has_ended()
    assert await run(tasks, task, make_turn(task), Steps()) == "ended"


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
    def end_meanwhile(_: Task, name: str = "*", within_s: float = 0) -> bool:
        return not task.write_file(RESULT, TimedModel(at=1))

    ended: list[Task] = []
    task.write_file(CANCEL, TimedModel(at=1))
    monkeypatch.setattr(Task, "is_leased", end_meanwhile)
    monkeypatch.setattr(Tasks, "end", lambda _, task, status: ended.append(task))
    assert (tasks.end_if_due(task), ended) == (True, [])


class Crew:
    """Jobs of one worker, each with its own work, whose steps wait until they are released."""

    def __init__(self, tasks: Tasks, places: int) -> None:
        self.tasks, self.line = tasks, WorkLine(places)
        self.running: list[str] = []
        self.most_running = 0
        self.released = asyncio.Event()

    def start(self, number: int, **options: Any) -> asyncio.Task[RunOutcome]:
        task = self.tasks.create(StoredRequest(id=self.tasks.id_for_job(f"job-{number}")))

        async def step(_: Turn) -> bool:
            self.running.append(task.id)
            self.most_running = max(self.most_running, len(self.running))
            await self.released.wait()
            self.running.remove(task.id)
            return task.write_file(RESULT, TimedModel())

        turn = make_turn(task, **options)
        return asyncio.create_task(run(self.tasks, task, turn, step, self.line))


async def test_only_a_few_jobs_run_and_all_others_wait_without_a_thread_or_a_lease(
    tasks: Tasks,
) -> None:
    crew = Crew(tasks, places=3)
    jobs = [crew.start(number) for number in range(60)]
    await poll_until(lambda: len(crew.running) == 3 and crew.line.waiting_count == 57)
    assert not any(task.is_leased() for task in all_records(tasks))
    crew.released.set()
    assert [await job for job in jobs] == ["ended"] * 60
    assert crew.most_running == 3


async def test_jobs_whose_work_other_workers_do_leave_their_place_to_others(
    tasks: Tasks, task: Task
) -> None:
    crew = Crew(tasks, places=1)
    crew.released.set()

    async def find_no_work(_: Turn) -> bool:
        return False

    waiting = asyncio.create_task(run(tasks, task, make_turn(task, 60), find_no_work, crew.line))
    assert await asyncio.wait_for(crew.start(2), HUNG_S) == "ended"
    task.write_file(RESULT, TimedModel())
    assert await asyncio.wait_for(waiting, HUNG_S) == "ended"


@pytest.mark.parametrize("end", ["deadline", "shutdown", "cancelled job", "cancelled work"])
async def test_the_wait_of_a_job_ends(tasks: Tasks, end: str) -> None:
    crew, closed_at = Crew(tasks, places=1), [math.inf]
    running = crew.start(1)
    await poll_until(lambda: crew.running)
    task = tasks.create(StoredRequest(id=tasks.id_for_job("job-2")))
    turn = Turn(task, 0.1 if end == "deadline" else 3600, lambda: closed_at[0])
    waiting = asyncio.create_task(run(tasks, task, turn, Steps(), crew.line))
    await poll_until(lambda: crew.line.waiting_count or waiting.done())
    if end == "shutdown":
        closed_at[0] = time.monotonic()
        await asyncio.to_thread(crew.line.close)
    elif end == "cancelled job":
        waiting.cancel()
    elif end == "cancelled work":
        task.write_file(CANCEL, TimedModel())
        crew.line.wake(task.id)
    await asyncio.wait({waiting}, timeout=HUNG_S)
    outcome = None if waiting.cancelled() else waiting.result()
    assert outcome == {"cancelled job": None, "cancelled work": "ended"}.get(end, "left")
    # The place is not lost.
    crew.released.set()
    assert await running == "ended"
    assert await asyncio.wait_for(crew.start(3), HUNG_S) == "ended"


def turn_at(root: Path) -> Turn:
    return Turn(Task(root), limit_s=60)


async def test_one_of_two_workers_acquires_a_lease_and_the_other_one_after_its_release(
    tmp_path: Path,
) -> None:
    turn, other = turn_at(tmp_path), turn_at(tmp_path)
    async with turn.acquire_lease("plan") as first:
        assert first is not None
        async with other.acquire_lease("plan") as second, other.acquire_lease("end") as third:
            assert second is None
            assert third is not None
    async with other.acquire_lease("plan") as second:
        assert second is not None
        assert second.owner != first.owner


async def test_a_lease_is_released_if_its_job_is_cancelled_at_any_moment(tmp_path: Path) -> None:
    async def work() -> None:
        async with turn_at(tmp_path).acquire_lease("plan"):
            await asyncio.sleep(60)

    for waits in range(20):
        task = asyncio.create_task(work())
        for _ in range(waits):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        async with turn_at(tmp_path).acquire_lease("plan") as lease:
            assert lease is not None


@pytest.mark.parametrize(("poll_s", "is_acquired"), [(0.0, True), (POLL_S, False)])
async def test_the_lease_of_a_dead_owner_is_taken_over_after_enough_polls_and_not_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poll_s: float, is_acquired: bool
) -> None:
    assert MAX_UNCHANGED_POLLS * POLL_S > 2 * HEARTBEAT_S
    monkeypatch.setattr("worker.long_work.runner.POLL_S", poll_s)
    (tmp_path / "leases" / "plan").mkdir(parents=True)
    (tmp_path / "leases" / "plan" / "lease-7").write_text("{}")
    turn = turn_at(tmp_path)
    # The first poll has no earlier one to compare with.
    for _ in range(MAX_UNCHANGED_POLLS + 1):
        async with turn.acquire_lease("plan") as lease:
            assert lease is None
    async with turn.acquire_lease("plan") as lease:
        assert (lease is not None and lease.number == 8) is is_acquired


async def test_a_failing_poll_is_an_error_of_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LeaseDirectory) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(LeaseDirectory, "poll_claim", fail)
    async with turn_at(tmp_path).acquire_lease("plan"):
        with pytest.raises(VolumeError, match="Stale"):
            async with turn_at(tmp_path).acquire_lease("plan"):
                pass


async def test_a_lease_on_a_read_only_volume_is_an_error_of_the_volume(tmp_path: Path) -> None:
    with mount_disk(tmp_path / "disk", 1 << 20) as disk:
        remount(disk, "ro")
        with pytest.raises(VolumeError, match="read-only"):
            async with turn_at(disk).acquire_lease("plan"):
                pass
