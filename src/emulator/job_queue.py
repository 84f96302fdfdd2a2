"""The jobs and workers of one endpoint, as the platform sees them."""

import asyncio
import json
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakSet

import msgspec

from emulator.job import Chunk, Condition, Job, Policy, Status
from emulator.options import ExpiredJobHandling, LostJobHandling, Options


class Process(Protocol):
    """The process of a worker that the emulator started."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...


@dataclass(slots=True, eq=False)
class Worker:
    """State of a worker that the platform knows, with counts of its calls."""

    id: str
    ready: bool = False  # it started and requests jobs, or the load balancer's last ping got 200
    has_failed_start: bool = False  # it requests jobs only to answer why its startup failed
    unhealthy: bool = False  # its ping reports so, its startup failed, or it exited during startup
    starts: int = 0  # starts of its process
    process: Process | None = None  # None if none runs or the emulator didn't start it
    pending_stops: list[str] = field(default_factory=list)  # ids of cancelled jobs, not sent yet
    pings: int = 0
    takes: int = 0  # requests for jobs
    jobs: int = 0  # delivered jobs
    chunks: int = 0  # stream posts
    results: int = 0
    late_posts: int = 0  # chunks and results of a job that had already ended
    late_chunks: int = 0  # chunks of a job that had already completed or failed
    frozen: bool = False  # its processes are paused with SIGSTOP, and its requests are reset
    thaw_timer: asyncio.TimerHandle | None = None
    connections: WeakSet[asyncio.BaseTransport] = field(default_factory=WeakSet)
    changed: Condition = field(default_factory=Condition)

    def state(self, *, busy: bool) -> str:
        """Return the key under which /health counts the worker."""
        if self.unhealthy:
            return "unhealthy"
        if not self.ready:
            return "initializing"
        return "running" if busy else "idle"

    def add_pending_stops(self, job_ids: list[str]) -> None:
        self.pending_stops.extend(job_ids)
        self.changed.notify_all()


class Queue:
    """The workers and all jobs of one endpoint.

    Each change is one synchronous call on the event loop, so no caller sees a partial change.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.changed = Condition()  # notified of available jobs, new workers, pings, and `close`
        self.is_closed = False  # workers get no more jobs
        self.on_end: Callable[[Job], None] = lambda _: None
        self._options = options or Options()
        self._waiting_jobs: deque[Job] = deque()
        self._redeliveries: deque[Job] = deque()  # jobs in progress, to deliver a second time
        self._running_jobs: dict[str, Job] = {}
        self._counts: Counter[str] = Counter()

    @property
    def has_available_jobs(self) -> bool:
        return bool(self._waiting_jobs or self._redeliveries)

    def is_busy(self, worker: Worker) -> bool:
        return any(job.worker_id == worker.id for job in self._running_jobs.values())

    def submit(
        self,
        payload: Mapping[str, Any],
        policy: Policy | None = None,
        webhook: str | None = None,
        sync: bool = False,
    ) -> Job:
        """Queue a job; if its caller waits for it (``sync``), its result is retained for less time.

        ``payload`` is the body of the caller's request, as values or as ``msgspec.Raw``.
        """
        options = self._options
        policy = policy or Policy()
        job = Job(
            f"{'sync-' if sync else ''}{uuid4()}-e1",
            {key: _to_raw_json(value) for key, value in payload.items()},
            ttl_s=_seconds(policy.ttl_ms, options.ttl_s),
            execution_timeout_s=_seconds(policy.execution_timeout_ms, options.execution_timeout_s),
            retention_s=options.runsync_retention_s if sync else options.run_retention_s,
            webhook=webhook,
        )
        self.jobs[job.id] = job
        self._waiting_jobs.append(job)
        self._set_timer(job)
        self.changed.notify_all()
        return job

    def get_worker(self, worker_id: str) -> Worker:
        """Return the worker with this id; register it if it is new."""
        if worker_id not in self.workers:
            self.workers[worker_id] = Worker(worker_id)
            self.changed.notify_all()
        return self.workers[worker_id]

    def take(self, worker: Worker, limit: int) -> list[Job]:
        """Hand up to ``limit`` jobs to the worker and mark them as in progress.

        Jobs that a fault delivers a second time come first; they keep their first worker.
        """
        redelivered = _pop_jobs(self._redeliveries, limit)
        redelivered = [job for job in redelivered if job.status is Status.IN_PROGRESS]
        new_jobs = _pop_jobs(self._waiting_jobs, limit - len(redelivered))
        now = time.monotonic()
        for job in new_jobs:
            job.status = Status.IN_PROGRESS
            job.worker_id = worker.id
            job.started_at = now
            self._running_jobs[job.id] = job
            self._set_timer(job)
            job.changed.notify_all()
            if job.id in worker.pending_stops:  # from a cancel of an earlier attempt
                worker.pending_stops.remove(job.id)
        return redelivered + new_jobs

    def requeue(self, jobs: list[Job]) -> None:
        """Put jobs in progress back to the front of the queue, except redelivered jobs."""
        for job in reversed(jobs):
            if job.status is Status.IN_PROGRESS and not job.is_redelivered:
                del self._running_jobs[job.id]
                job.status = Status.IN_QUEUE
                job.worker_id = job.started_at = job.progress = None
                self._waiting_jobs.appendleft(job)
                self._set_timer(job)
                job.changed.notify_all()
        self.changed.notify_all()

    def redeliver(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.is_redelivered = True
        self._redeliveries.extend(jobs)
        self.changed.notify_all()

    def accepts_posts(self, job: Job, worker_id: str) -> bool:
        """Return whether the job is still this worker's, or a fault delivered it twice."""
        return job.worker_id == worker_id or job.is_redelivered

    def add_chunk(self, job: Job, output: Any, size: int = 0) -> None:
        # The worker of a cancelled job may still be posting: its chunks are dropped.
        if job.status is Status.IN_PROGRESS:
            job.chunks.append(Chunk(output, time.monotonic(), size))
            job.changed.notify_all()

    def store_progress(self, job: Job, progress: Any) -> None:
        if job.status is Status.IN_PROGRESS:
            job.progress = progress
            job.changed.notify_all()

    def complete(self, job: Job, output: Any) -> None:
        """End a job with its output, as a value or as ``msgspec.Raw``; None: without one."""
        if job.status is Status.IN_PROGRESS:
            job.result = None if output is None else bytes(_to_raw_json(output))
            self._end_job(job, Status.COMPLETED)

    def fail(self, job: Job, error: str) -> None:
        if job.status is Status.IN_PROGRESS:
            self._end_job(job, Status.FAILED, error)

    def cancel(self, job: Job) -> None:
        """End the job immediately unless it has ended; job-stop notifies a worker that runs it."""
        self._end_job_early(job, Status.CANCELLED)

    def retry(self, job: Job) -> None:
        """Queue an ended job again, under the same id and without its outputs."""
        self._counts["retried"] += 1
        job.reset_for_retry()
        self._waiting_jobs.append(job)
        self._set_timer(job)
        job.changed.notify_all()
        self.changed.notify_all()

    def purge(self) -> int:
        """Cancel all waiting jobs and return their number.

        The real platform's handling of these jobs is not public.
        """
        waiting = list(self._waiting_jobs)
        for job in waiting:
            self.cancel(job)
        return len(waiting)

    def set_ttl(self, job: Job, seconds: float) -> None:
        """Let the job expire, or remove its result, this many seconds from now."""
        job.ttl_ends_at = time.monotonic() + seconds
        self._set_timer(job)

    def handle_worker_exit(self, worker: Worker) -> None:
        """Reset the state of a worker whose process has exited; apply ``lost_as`` to its jobs."""
        worker.ready = worker.has_failed_start = False
        worker.process = None
        worker.frozen = False
        worker.pending_stops.clear()
        lost = [job for job in self._running_jobs.values() if job.worker_id == worker.id]
        if self._options.lost_as is LostJobHandling.FAILED:
            for job in lost:
                self.fail(job, f"{worker.id} exited while it ran this job")
        elif self._options.lost_as is LostJobHandling.REQUEUED:
            self._counts["retried"] += len(lost)
            for job in lost:
                job.is_redelivered = False
            self.requeue(lost)

    def close(self) -> None:
        """Stop handing out jobs: cancel the waiting jobs, and end all long polls."""
        self.is_closed = True
        self.purge()
        self.changed.notify_all()
        for worker in self.workers.values():
            worker.changed.notify_all()

    def health(self) -> dict[str, dict[str, int]]:
        """Return the body of /health. Ended jobs are counted since the emulator's startup."""
        busy = {job.worker_id for job in self._running_jobs.values()}
        states = Counter(worker.state(busy=worker.id in busy) for worker in self.workers.values())
        counts = self._counts
        return {
            "jobs": {
                "completed": counts[Status.COMPLETED],
                "failed": counts[Status.FAILED] + counts[Status.TIMED_OUT],
                "inProgress": len(self._running_jobs),
                "inQueue": len(self._waiting_jobs),
                "retried": counts["retried"],
            },
            "workers": {
                "idle": states["idle"],
                "initializing": states["initializing"],
                # Undocumented: here, the number of workers that are free to take a job.
                "ready": states["idle"],
                "running": states["running"],
                "throttled": 0,
                "unhealthy": states["unhealthy"],
            },
        }

    def _set_timer(self, job: Job) -> None:
        """Set the timer of the job's deadline, or of the end of its retention if it has ended."""
        if job.timer is not None:
            job.timer.cancel()
        if job.ended_at is None:
            due_at, action = job.deadline, self._handle_deadline
        else:
            due_at, action = job.ended_at + job.retention_s, self._remove_job
            if job.ttl_ends_at is not None and job.ttl_ends_at > job.ended_at:
                due_at = job.ttl_ends_at
        delay = due_at - time.monotonic()
        job.timer = asyncio.get_running_loop().call_later(delay, action, job)

    def _handle_deadline(self, job: Job) -> None:
        is_expired = job.deadline == job.expires_at
        limit_name = "ttl" if is_expired else "executionTimeout"
        self._end_job_early(job, Status.TIMED_OUT, f"the job's {limit_name} has expired")
        if is_expired and self._options.expired_as is ExpiredJobHandling.DELETED:
            self._remove_job(job)

    def _remove_job(self, job: Job) -> None:
        if job.timer is not None:
            job.timer.cancel()
        del self.jobs[job.id]

    def _end_job_early(self, job: Job, status: Status, error: str | None = None) -> None:
        """End a job unless it has ended; have the worker that runs it stop it."""
        if job.status is Status.IN_QUEUE:
            self._waiting_jobs.remove(job)
        elif job.status is Status.IN_PROGRESS and job.worker_id is not None:
            self.get_worker(job.worker_id).add_pending_stops([job.id])
        if not job.has_ended:
            self._end_job(job, status, error)

    def _end_job(self, job: Job, status: Status, error: str | None = None) -> None:
        self._running_jobs.pop(job.id, None)
        self._counts[status] += 1
        job.status = status
        job.error = error
        job.ended_at = time.monotonic()
        self._set_timer(job)
        job.changed.notify_all()
        self.on_end(job)


def _pop_jobs(jobs: deque[Job], limit: int) -> list[Job]:
    return [jobs.popleft() for _ in range(min(limit, len(jobs)))]


def _to_raw_json(value: Any) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    # Python's own encoder also writes values that tests send, such as NaN and lone surrogates.
    return msgspec.Raw(json.dumps(value).encode())


def _seconds(milliseconds: int | None, default_s: float) -> float:
    return default_s if milliseconds is None else milliseconds / 1000
