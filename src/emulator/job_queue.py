"""The platform's state: the jobs of one endpoint, the queue they wait in, the workers. No HTTP."""

import asyncio
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from emulator.jobs import Chunk, Job, Status
from emulator.options import ExpiredAs, LostAs, Options
from emulator.payload import Policy
from emulator.signals import Signal


class Process(Protocol):
    """A worker's container, as far as it can be reached from here."""

    @property
    def pid(self) -> int: ...

    def signal(self, number: signal.Signals) -> None: ...


@dataclass(slots=True, eq=False)
class Worker:
    """A worker the platform has heard of."""

    id: str
    ready: bool = False  # it has asked for a job since it was started
    unhealthy: bool = False  # it said so, or exited before it was ready
    starts: int = 0  # of its process, where the emulator started it
    process: Process | None = None
    stops: list[str] = field(default_factory=list)  # ids of cancelled jobs it must still be told
    pings: int = 0
    changed: Signal = field(default_factory=Signal)

    def take_stops(self) -> list[str]:
        stops, self.stops = self.stops, []
        return stops

    def add_stops(self, job_ids: list[str]) -> None:
        self.stops.extend(job_ids)
        self.changed.fire()


class Queue:
    """All jobs of one endpoint, those that wait among them in order, and its workers.

    Every change is a plain call within one event loop: whoever looks sees a whole step.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.arrived = Signal()  # of a job to take, or of a worker never heard of before
        self.closed = False  # nothing is taken any more
        self.on_end: Callable[[Job], None] = lambda _: None
        self._options = options or Options()
        self._waiting: deque[Job] = deque()
        self._again: deque[Job] = deque()  # to be delivered a second time
        self._running: dict[str, Job] = {}
        self._counts: Counter[str] = Counter()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting or self._again)

    def submit(
        self,
        payload: dict[str, Any],
        policy: Policy | None = None,
        webhook: str | None = None,
        sync: bool = False,
    ) -> Job:
        """Queue a job; `sync` is one whose caller waits, whose result is kept for less long."""
        options = self._options
        policy = policy or Policy()
        job = Job(
            f"{'sync-' if sync else ''}{uuid4()}-e1",
            payload,
            ttl_s=_seconds(policy.ttl_ms, options.ttl_s),
            execution_timeout_s=_seconds(policy.execution_timeout_ms, options.execution_timeout_s),
            retention_s=options.runsync_retention_s if sync else options.run_retention_s,
            webhook=webhook,
        )
        self.jobs[job.id] = job
        self._waiting.append(job)
        self._set_timer(job)
        self.arrived.fire()
        return job

    def worker(self, worker_id: str) -> Worker:
        if worker_id not in self.workers:
            self.workers[worker_id] = Worker(worker_id)
            self.arrived.fire()
        return self.workers[worker_id]

    def take(self, worker: Worker, limit: int) -> list[Job]:
        """Hand the worker up to `limit` jobs: they are in progress from here on."""
        again = [self._again.popleft() for _ in range(min(limit, len(self._again)))]
        again = [job for job in again if job.status is Status.IN_PROGRESS]
        count = min(limit - len(again), len(self._waiting))
        taken = [self._waiting.popleft() for _ in range(count)]
        now = time.monotonic()
        for job in taken:
            job.status = Status.IN_PROGRESS
            job.worker = worker.id
            job.started_at = now
            self._running[job.id] = job
            self._set_timer(job)
            job.changed.fire()
            if job.id in worker.stops:  # of an earlier attempt
                worker.stops.remove(job.id)
        return again + taken

    def give_back(self, jobs: list[Job]) -> None:
        """Put jobs that never reached their worker back where they were: at the front."""
        for job in reversed(jobs):
            if job.status is Status.IN_PROGRESS and not job.delivered_again:
                del self._running[job.id]
                job.status = Status.IN_QUEUE
                job.worker = job.started_at = job.progress = None
                self._waiting.appendleft(job)
                self._set_timer(job)
                job.changed.fire()
        self.arrived.fire()

    def deliver_again(self, jobs: list[Job]) -> None:
        """Deliver jobs that are in progress already a second time."""
        for job in jobs:
            job.delivered_again = True
        self._again.extend(jobs)
        self.arrived.fire()

    def heeds(self, job: Job, worker_id: str) -> bool:
        """Whether a worker's posts for a job count: it may be another's by now."""
        return job.worker == worker_id or job.delivered_again

    def add_chunk(self, job: Job, output: Any, size: int = 0) -> None:
        # A cancelled job's worker may still be posting: that is no news for anybody.
        if job.status is Status.IN_PROGRESS:
            job.chunks.append(Chunk(output, time.monotonic(), size))
            job.changed.fire()

    def report_progress(self, job: Job, progress: Any) -> None:
        if job.status is Status.IN_PROGRESS:
            job.progress = progress
            job.changed.fire()

    def complete(self, job: Job, output: Any) -> None:
        if job.status is Status.IN_PROGRESS:
            job.output = output
            self._end(job, Status.COMPLETED)

    def fail(self, job: Job, error: str) -> None:
        if job.status is Status.IN_PROGRESS:
            self._end(job, Status.FAILED, error)

    def cancel(self, job: Job) -> None:
        """End the job now; the worker that runs it is told through its stop channel."""
        self._give_up(job, Status.CANCELLED)

    def retry(self, job: Job) -> None:
        """Queue a job that ended once more, under its id; what it gave is gone."""
        self._counts["retried"] += 1
        job.reset()
        self._waiting.append(job)
        self._set_timer(job)
        job.changed.fire()
        self.arrived.fire()

    def purge(self) -> int:
        """Cancel all jobs that nobody has taken; return how many there were.

        What the platform lets become of them is not public.
        """
        waiting = list(self._waiting)
        for job in waiting:
            self.cancel(job)
        return len(waiting)

    def set_ttl(self, job: Job, seconds: float) -> None:
        """Let the job expire, or its result be forgotten, in so many seconds from now."""
        job.forget_at = time.monotonic() + seconds
        self._set_timer(job)

    def lose(self, worker: Worker) -> None:
        """Do what the options say about the jobs of a worker whose process is gone."""
        worker.ready = False
        worker.process = None
        worker.stops.clear()
        lost = [job for job in self._running.values() if job.worker == worker.id]
        if self._options.lost_as is LostAs.FAILED:
            for job in lost:
                self.fail(job, f"{worker.id} exited while it ran this job")
        elif self._options.lost_as is LostAs.REQUEUED:
            self._counts["retried"] += len(lost)
            for job in lost:
                job.delivered_again = False
            self.give_back(lost)

    def close(self) -> None:
        """Hand out nothing more: cancel what waits, and wake whoever waits for a job."""
        self.closed = True
        self.purge()
        self.arrived.fire()
        for worker in self.workers.values():
            worker.changed.fire()

    def health(self) -> dict[str, dict[str, int]]:
        """What /health answers: those that ended are counted from the emulator's start on."""
        busy = {job.worker for job in self._running.values()}
        states = Counter(_state(worker, worker.id in busy) for worker in self.workers.values())
        counts = self._counts
        return {
            "jobs": {
                "completed": counts[Status.COMPLETED],
                "failed": counts[Status.FAILED] + counts[Status.TIMED_OUT],
                "inProgress": len(self._running),
                "inQueue": len(self._waiting),
                "retried": counts["retried"],
            },
            "workers": {
                "idle": states["idle"],
                "initializing": states["initializing"],
                # What the platform counts here is not documented: those that could take a job.
                "ready": states["idle"],
                "running": states["running"],
                "throttled": 0,
                "unhealthy": states["unhealthy"],
            },
        }

    def _set_timer(self, job: Job) -> None:
        """Let the next thing happen by itself: the job's deadline, or the end of its retention."""
        if job.timer is not None:
            job.timer.cancel()
        if job.ended_at is None:
            at, happens = job.deadline, self._time_out
        else:
            at, happens = job.ended_at + job.retention_s, self._forget
            if job.forget_at is not None and job.forget_at > job.ended_at:
                at = job.forget_at
        delay = at - time.monotonic()
        job.timer = asyncio.get_running_loop().call_later(delay, happens, job)

    def _time_out(self, job: Job) -> None:
        expired = job.deadline == job.expires_at
        bound = "ttl" if expired else "executionTimeout"
        self._give_up(job, Status.TIMED_OUT, f"the job's {bound} is over")
        if expired and self._options.expired_as is ExpiredAs.DELETED:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        if job.timer is not None:
            job.timer.cancel()
        del self.jobs[job.id]

    def _give_up(self, job: Job, status: Status, error: str | None = None) -> None:
        """End a job that no worker has ended."""
        if job.status is Status.IN_QUEUE:
            self._waiting.remove(job)
        elif job.status is Status.IN_PROGRESS and job.worker is not None:
            self.worker(job.worker).add_stops([job.id])
        if not job.ended:
            self._end(job, status, error)

    def _end(self, job: Job, status: Status, error: str | None = None) -> None:
        self._running.pop(job.id, None)
        self._counts[status] += 1
        job.status = status
        job.error = error
        job.ended_at = time.monotonic()
        self._set_timer(job)
        job.changed.fire()
        self.on_end(job)


def _state(worker: Worker, busy: bool) -> str:
    if worker.unhealthy:
        return "unhealthy"
    if not worker.ready:
        return "initializing"
    return "running" if busy else "idle"


def _seconds(milliseconds: int | None, default_s: float) -> float:
    return default_s if milliseconds is None else milliseconds / 1000
