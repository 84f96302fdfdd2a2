"""The jobs and workers of one endpoint."""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import msgspec

from emulator.options import ExpiredAs, LostAs, Options
from emulator.state.job import Chunk, Condition, Job, Policy, Status
from emulator.state.worker import Worker


class Queue:
    """All jobs of one endpoint, in order while they wait, and its workers.

    Each change is one synchronous call on the event loop, so no caller sees half of it.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.arrived = Condition()  # a job to take, or a new worker; also notified by `close`
        self.closed = False  # no job is handed out any more
        self.on_end: Callable[[Job], None] = lambda _: None
        self._options = options or Options()
        self._waiting: deque[Job] = deque()
        self._redeliveries: deque[Job] = deque()  # jobs in progress, to be delivered once more
        self._running: dict[str, Job] = {}
        self._counts: Counter[str] = Counter()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting or self._redeliveries)

    def submit(
        self,
        payload: Mapping[str, Any],
        policy: Policy | None = None,
        webhook: str | None = None,
        sync: bool = False,
    ) -> Job:
        """Queue a job.

        Args:
            payload: the public request's body, or its parts as they came.
            policy: its own.
            webhook: to call at its end.
            sync: the caller waits for the result, which is kept for less long.
        """
        options = self._options
        policy = policy or Policy()
        job = Job(
            f"{'sync-' if sync else ''}{uuid4()}-e1",
            {key: _as_json(value) for key, value in payload.items()},
            ttl_s=_seconds(policy.ttl_ms, options.ttl_s),
            execution_timeout_s=_seconds(policy.execution_timeout_ms, options.execution_timeout_s),
            retention_s=options.runsync_retention_s if sync else options.run_retention_s,
            webhook=webhook,
        )
        self.jobs[job.id] = job
        self._waiting.append(job)
        self._set_timer(job)
        self.arrived.notify_all()
        return job

    def worker(self, worker_id: str) -> Worker:
        """Return the worker of this id; register it if it is new."""
        if worker_id not in self.workers:
            self.workers[worker_id] = Worker(worker_id)
            self.arrived.notify_all()
        return self.workers[worker_id]

    def take(self, worker: Worker, limit: int) -> list[Job]:
        """Return up to `limit` jobs for the worker: they are in progress from here on."""
        redelivered = _popped(self._redeliveries, limit)
        redelivered = [job for job in redelivered if job.status is Status.IN_PROGRESS]
        taken = _popped(self._waiting, limit - len(redelivered))
        now = time.monotonic()
        for job in taken:
            job.status = Status.IN_PROGRESS
            job.worker = worker.id
            job.started_at = now
            self._running[job.id] = job
            self._set_timer(job)
            job.changed.notify_all()
            if job.id in worker.stops:  # from an earlier attempt
                worker.stops.remove(job.id)
        return redelivered + taken

    def give_back(self, jobs: list[Job]) -> None:
        """Put jobs that never reached their worker back to the front of the queue."""
        for job in reversed(jobs):
            if job.status is Status.IN_PROGRESS and not job.redelivered:
                del self._running[job.id]
                job.status = Status.IN_QUEUE
                job.worker = job.started_at = job.progress = None
                self._waiting.appendleft(job)
                self._set_timer(job)
                job.changed.notify_all()
        self.arrived.notify_all()

    def redeliver(self, jobs: list[Job]) -> None:
        """Deliver jobs that are already in progress a second time."""
        for job in jobs:
            job.redelivered = True
        self._redeliveries.extend(jobs)
        self.arrived.notify_all()

    def accepts_posts(self, job: Job, worker_id: str) -> bool:
        """Return whether the worker's posts for the job count: it may be another's by now."""
        return job.worker == worker_id or job.redelivered

    def add_chunk(self, job: Job, output: Any, size: int = 0) -> None:
        # The worker of a cancelled job may still be posting: its chunks are dropped.
        if job.status is Status.IN_PROGRESS:
            job.chunks.append(Chunk(output, time.monotonic(), size))
            job.changed.notify_all()

    def report_progress(self, job: Job, progress: Any) -> None:
        if job.status is Status.IN_PROGRESS:
            job.progress = progress
            job.changed.notify_all()

    def complete(self, job: Job, output: Any) -> None:
        if job.status is Status.IN_PROGRESS:
            job.output = output
            self._end(job, Status.COMPLETED)

    def fail(self, job: Job, error: str) -> None:
        if job.status is Status.IN_PROGRESS:
            self._end(job, Status.FAILED, error)

    def cancel(self, job: Job) -> None:
        """End the job now; job-stop tells the worker that runs it."""
        self._give_up(job, Status.CANCELLED)

    def retry(self, job: Job) -> None:
        """Queue a job that ended once more, under the same id and without its outputs."""
        self._counts["retried"] += 1
        job.reset()
        self._waiting.append(job)
        self._set_timer(job)
        job.changed.notify_all()
        self.arrived.notify_all()

    def purge(self) -> int:
        """Cancel all waiting jobs; return their number.

        What the real platform does with them is not public.
        """
        waiting = list(self._waiting)
        for job in waiting:
            self.cancel(job)
        return len(waiting)

    def set_ttl(self, job: Job, seconds: float) -> None:
        """Let the job expire, or its result be forgotten, this many seconds from now."""
        job.forget_at = time.monotonic() + seconds
        self._set_timer(job)

    def lose(self, worker: Worker) -> None:
        """Handle the jobs of a worker whose process is gone, as `lost_as` says."""
        worker.ready = worker.failed = False
        worker.process = None
        worker.frozen = False
        worker.stops.clear()
        lost = [job for job in self._running.values() if job.worker == worker.id]
        if self._options.lost_as is LostAs.FAILED:
            for job in lost:
                self.fail(job, f"{worker.id} exited while it ran this job")
        elif self._options.lost_as is LostAs.REQUEUED:
            self._counts["retried"] += len(lost)
            for job in lost:
                job.redelivered = False
            self.give_back(lost)

    def close(self) -> None:
        """Stop handing out jobs: cancel those that wait, and wake all held polls."""
        self.closed = True
        self.purge()
        self.arrived.notify_all()
        for worker in self.workers.values():
            worker.changed.notify_all()

    def health(self) -> dict[str, dict[str, int]]:
        """Return the body of /health. Jobs that ended are counted since the emulator's start."""
        busy = {job.worker for job in self._running.values()}
        states = Counter(worker.state(busy=worker.id in busy) for worker in self.workers.values())
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
                # What the platform counts here is not documented: workers free to take a job.
                "ready": states["idle"],
                "running": states["running"],
                "throttled": 0,
                "unhealthy": states["unhealthy"],
            },
        }

    def _set_timer(self, job: Job) -> None:
        """Set the timer of the job's deadline, or of the end of its retention."""
        if job.timer is not None:
            job.timer.cancel()
        if job.ended_at is None:
            at, action = job.deadline, self._time_out
        else:
            at, action = job.ended_at + job.retention_s, self._forget
            if job.forget_at is not None and job.forget_at > job.ended_at:
                at = job.forget_at
        delay = at - time.monotonic()
        job.timer = asyncio.get_running_loop().call_later(delay, action, job)

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
        """End a job that its worker has not ended."""
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
        job.changed.notify_all()
        self.on_end(job)


def _popped(jobs: deque[Job], limit: int) -> list[Job]:
    return [jobs.popleft() for _ in range(min(limit, len(jobs)))]


def _as_json(value: Any) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    # Python's own encoder writes all that tests may send: NaN, half a surrogate pair.
    return msgspec.Raw(json.dumps(value).encode())


def _seconds(milliseconds: int | None, default_s: float) -> float:
    return default_s if milliseconds is None else milliseconds / 1000
