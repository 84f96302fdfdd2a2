"""The platform's state: jobs, the queue they wait in, the workers that take them. No HTTP here."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import uuid4


class Status(StrEnum):
    """Where a job is in its life, in the platform's words."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self not in (Status.IN_QUEUE, Status.IN_PROGRESS)


class Signal:
    """Wakes those who wait for a change. Costs nothing while nobody waits."""

    def __init__(self) -> None:
        # A dict for its order: who waits longest is woken first.
        self._waiters: dict[asyncio.Future[None], None] = {}

    def fire(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait_for(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the predicate holds; False where the time is up first."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    waiter = loop.create_future()
                    self._waiters[waiter] = None
                    try:
                        await waiter
                    finally:
                        self._waiters.pop(waiter, None)
        except TimeoutError:
            return predicate()
        return True


class Chunk(NamedTuple):
    """What one yield of the handler sent, and when it arrived (time.monotonic)."""

    output: Any
    at: float


@dataclass(slots=True, eq=False)
class Job:
    """One job from the public request to its end, with everything the worker posted for it."""

    id: str
    payload: dict[str, Any]  # the public request's body: input, and what else the caller sent
    status: Status = Status.IN_QUEUE
    worker: str | None = None  # who took it
    chunks: list[Chunk] = field(default_factory=list)  # every stream post, in order
    output: Any = None  # what the final post carried
    error: str | None = None
    queued_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    ended_at: float | None = None
    changed: Signal = field(default_factory=Signal)
    _read: int = 0  # chunks already handed out by read_chunks

    @property
    def ended(self) -> bool:
        return self.status.final

    @property
    def has_unread(self) -> bool:
        return self._read < len(self.chunks)

    def read_chunks(self) -> list[Chunk]:
        """The chunks nobody has read yet: reading takes them, as on the platform."""
        unread = self.chunks[self._read :]
        self._read = len(self.chunks)
        return unread

    async def follow(self) -> AsyncGenerator[Chunk, None]:
        """Every chunk from the first on, as it arrives, until the job ends. Takes nothing away."""
        position = 0

        def news() -> bool:
            return position < len(self.chunks) or self.ended

        while await self.changed.wait_for(news):
            if position == len(self.chunks):
                return
            yield self.chunks[position]
            position += 1

    async def wait_ended(self, timeout_s: float | None = None) -> bool:
        return await self.changed.wait_for(lambda: self.ended, timeout_s)

    def report(self) -> dict[str, Any]:
        """The status object that /status and /runsync answer."""
        report: dict[str, Any] = {"id": self.id, "status": self.status}
        if self.worker is not None:
            report["workerId"] = self.worker
        if self.started_at is not None:
            report["delayTime"] = _milliseconds(self.started_at - self.queued_at)
            if self.ended_at is not None:
                report["executionTime"] = _milliseconds(self.ended_at - self.started_at)
        if self.status is Status.COMPLETED and self.output is not None:
            report["output"] = self.output
        if self.error is not None:
            report["error"] = self.error
        return report


@dataclass(slots=True, eq=False)
class Worker:
    """A worker the platform has heard of."""

    id: str
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

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.arrived = Signal()  # of a job to take, or of a worker never heard of before
        self._waiting: deque[Job] = deque()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def submit(self, payload: dict[str, Any], id_prefix: str = "") -> Job:
        job = Job(f"{id_prefix}{uuid4()}-e1", payload)
        self.jobs[job.id] = job
        self._waiting.append(job)
        self.arrived.fire()
        return job

    def worker(self, worker_id: str) -> Worker:
        if worker_id not in self.workers:
            self.workers[worker_id] = Worker(worker_id)
            self.arrived.fire()
        return self.workers[worker_id]

    def take(self, worker: Worker, limit: int) -> list[Job]:
        """Hand the worker up to `limit` jobs: they are in progress from here on."""
        taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        now = time.monotonic()
        for job in taken:
            job.status = Status.IN_PROGRESS
            job.worker = worker.id
            job.started_at = now
            job.changed.fire()
        return taken

    def give_back(self, jobs: list[Job]) -> None:
        """Put jobs that never reached their worker back where they were: at the front."""
        for job in reversed(jobs):
            if job.status is Status.IN_PROGRESS:
                job.status = Status.IN_QUEUE
                job.worker = job.started_at = None
                self._waiting.appendleft(job)
                job.changed.fire()
        self.arrived.fire()

    def add_chunk(self, job: Job, output: Any) -> None:
        # A cancelled job's worker may still be posting: that is no news for anybody.
        if job.status is Status.IN_PROGRESS:
            job.chunks.append(Chunk(output, time.monotonic()))
            job.changed.fire()

    def complete(self, job: Job, output: Any) -> None:
        if job.status is Status.IN_PROGRESS:
            job.output = output
            _end(job, Status.COMPLETED)

    def fail(self, job: Job, error: str) -> None:
        if job.status is Status.IN_PROGRESS:
            job.error = error
            _end(job, Status.FAILED)

    def cancel(self, job: Job) -> None:
        """End the job now; the worker that runs it is told through its stop channel."""
        if job.status is Status.IN_QUEUE:
            self._waiting.remove(job)
        if not job.ended:
            _end(job, Status.CANCELLED)
            if job.worker is not None:
                self.worker(job.worker).add_stops([job.id])


def _end(job: Job, status: Status) -> None:
    job.status = status
    job.ended_at = time.monotonic()
    job.changed.fire()


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
