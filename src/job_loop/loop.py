"""Takes jobs while there are free slots, runs them, and lets go of them in order."""

import asyncio
import contextlib
import json
import logging
import math
import signal
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import uvloop

from job_loop.delivery import Delivery
from job_loop.polls import Polls
from job_loop.wire import NotDelivered, Wire
from worker.errors import ShuttingDown, WorkerError, defects_hidden
from worker.record import UNANSWERED, JobRecord

log = logging.getLogger(__name__)

# Seconds for which a take is not hung up: if jobs are waiting, its answer is on its way.
TAKE_PATIENCE_S = 0.25
# Seconds for what is on its way when the grace is over.
LAST_POSTS_S = 3.0
# Seconds for the failures of the jobs of an engine that died.
DEAD_GRACE_S = 10.0
# Seconds between looks whether an engine is back that is started again.
READY_INTERVAL_S = 0.1
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Answers(Protocol):
    """What answers the jobs: ``worker.app.Worker``.

    A job that could not be read has a ``WorkerError`` in place of its input.
    """

    def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]: ...

    def leave(self) -> None: ...

    def end_all(self, error: WorkerError) -> None: ...

    @property
    def ready(self) -> bool: ...


class InProgress(Protocol):
    """The ids of the jobs in progress, for the pings: the SDK's ``JobsProgress``."""

    def add(self, element: str) -> Any: ...

    def remove(self, element: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How many jobs may be in progress at once, and how long they may take to end at the end.

    ``grace_s`` counts from the signal. ``values`` is what one job may have of them. The loop ends
    after ``idle_s`` without a job, and after ``life_s`` however many there are.
    """

    jobs: int
    grace_s: float
    values: float = math.inf
    idle_s: float = math.inf
    life_s: float = math.inf


class JobLoop:
    """Runs jobs until SIGTERM, SIGINT or the death of an engine.

    Args:
        answers: the worker.
        wire: to the platform.
        limits: of the jobs.
        died: resolves when an engine is dead.
        in_progress: is kept up to date for the pings.
    """

    def __init__(
        self,
        answers: Answers,
        wire: Wire,
        limits: Limits,
        died: "Future[None]",
        in_progress: InProgress,
    ) -> None:
        self._answers = answers
        self._wire = wire
        self._limits = limits
        self._died = died
        self._in_progress = in_progress
        self._running: dict[str, asyncio.Task[None]] = {}
        self._leaving = asyncio.Event()
        self._a_slot_is_free = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run until the worker has to leave; the SDK calls this."""
        uvloop.run(self.run())

    async def run(self) -> None:
        """Take jobs, then let go of them."""
        loop = asyncio.get_running_loop()
        self._exit_now = signal.getsignal(signal.SIGTERM)
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        self._died.add_done_callback(lambda _: loop.call_soon_threadsafe(self.leave))
        self._leave_when_idle()
        if self._limits.life_s < math.inf:
            loop.call_later(self._limits.life_s, self.leave)
        # A defect in one of the tasks ends all, and is raised.
        async with self._wire, asyncio.TaskGroup() as tasks:
            values = self._limits.values
            takes = Polls(self._wire, _jobs_in, vital=True, most_values=values)
            taking = tasks.create_task(self._take_jobs(takes))
            stops = Polls(self._wire, _ids_in, vital=False)
            stopping = tasks.create_task(self._stop_jobs(stops))
            await self._leaving.wait()
            await takes.end(TAKE_PATIENCE_S)
            # An answer that has begun is read to its end.
            left_s = max(LAST_POSTS_S, self._grace_ends_at - time.monotonic())
            await asyncio.wait({taking}, timeout=left_s)
            await self._let_go()
            taking.cancel()
            stopping.cancel()

    def leave(self) -> None:
        """Take no further job, and end once those that run are answered."""
        grace_s = DEAD_GRACE_S if self._died.done() else self._limits.grace_s
        self._grace_ends_at = time.monotonic() + grace_s
        self._leaving.set()
        self._a_slot_is_free.set()
        self._answers.leave()

    def _leave_when_idle(self) -> None:
        """Count the time without a job anew."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._running and self._limits.idle_s < math.inf:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._limits.idle_s, self.leave)

    def _on_signal(self, number: int) -> None:
        log.info(
            "%s: no further job is taken, %d running jobs have %g s to end",
            signal.Signals(number).name,
            len(self._running),
            self._limits.grace_s,
        )
        self.leave()
        for again in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(again)
            signal.signal(again, self._exit_now)

    async def _let_go(self) -> None:
        """Wait for the running jobs; after the grace, fail those that are left as retryable."""
        await self._ended(self._grace_ends_at)
        if self._running:
            log.warning("%d jobs are not finished: they fail as retryable", len(self._running))
            self._answers.end_all(ShuttingDown())
            await self._ended(time.monotonic() + LAST_POSTS_S)
        for task in self._running.values():
            task.cancel()
        await self._ended(time.monotonic() + LAST_POSTS_S)

    async def _ended(self, until: float) -> None:
        """Wait until no job runs, or until a time (``time.monotonic``)."""
        while self._running and (left_s := until - time.monotonic()) > 0:
            await asyncio.wait(self._running.values(), timeout=left_s)

    # Jobs in:

    async def _take_jobs(self, polls: Polls[dict[str, Any]]) -> None:
        while await self._may_take():
            free = self._limits.jobs - len(self._running)
            url = self._wire.urls.next_jobs(free, busy=bool(self._running))
            for job in await polls.next(url):
                self._begin(job)

    async def _may_take(self) -> bool:
        """Wait for an engine and a free slot; return False when no further job may be taken."""
        while not self._leaving.is_set() and not self._answers.ready:  # noqa: ASYNC110 - rare, and on another loop
            await asyncio.sleep(READY_INTERVAL_S)
        while not self._leaving.is_set() and len(self._running) >= self._limits.jobs:
            self._a_slot_is_free.clear()
            await self._a_slot_is_free.wait()
        return not self._leaving.is_set()

    async def _stop_jobs(self, polls: Polls[str]) -> None:
        """Cancel the jobs that the platform names."""
        while url := self._wire.urls.stopped_jobs:
            for job_id in await polls.next(url):
                if task := self._running.get(job_id):
                    task.cancel()

    def _begin(self, job: dict[str, Any]) -> None:
        job_id: str = job["id"]
        if job_id in self._running:
            log.warning("job %s was handed over twice: it runs once", job_id)
            return
        task = asyncio.create_task(self._run_job(job))
        self._running[job_id] = task
        self._in_progress.add(job_id)
        self._leave_when_idle()

        def ended(task: asyncio.Task[None]) -> None:
            del self._running[job_id]
            self._in_progress.remove(job_id)
            self._a_slot_is_free.set()
            self._leave_when_idle()
            if not task.cancelled() and (defect := task.exception()):
                log.error("job %s met a defect", job_id, exc_info=defect)

        task.add_done_callback(ended)

    # Answers out:

    async def _run_job(self, job: dict[str, Any]) -> None:
        record = JobRecord.of(job)
        try:
            await self._answer(job, record)
        except asyncio.CancelledError:
            if record.status == HTTPStatus.OK:
                record.status = UNANSWERED
            raise
        except NotDelivered as lost:
            record.status = HTTPStatus.GATEWAY_TIMEOUT
            log.error("job %s: nobody knows of its result: %s", record.id, lost)  # noqa: TRY400 - no defect
        finally:
            record.write()

    async def _answer(self, job: dict[str, Any], record: JobRecord) -> None:
        delivery = Delivery(self._wire, record)
        try:
            with defects_hidden(record.id):
                error = await self._post_yields(job, record, delivery)
        except WorkerError as failed:
            record.status = failed.status
            error = json.dumps(failed.body(record.id), ensure_ascii=False)
        if error is None:
            await delivery.result()
        else:
            await delivery.failure(error)

    async def _post_yields(
        self, job: dict[str, Any], record: JobRecord, delivery: Delivery
    ) -> str | None:
        """Post what a job yields; return the error that fails it, if one does."""
        async with contextlib.aclosing(self._answers.handle(job, record)) as yields:
            async for value in yields:
                if isinstance(value, dict) and value.get("error"):
                    return str(value["error"])
                await delivery.chunk(value)
        return None


def _jobs_in(found: Any) -> list[dict[str, Any]]:
    """Return the jobs of an answer: one alone, or a list."""
    given = found if isinstance(found, list) else [] if found is None else [found]
    jobs = [job for job in given if isinstance(job, dict) and isinstance(job.get("id"), str)]
    if len(jobs) < len(given):
        log.error("the platform handed over jobs without an id: they can't be answered")
    return jobs


def _ids_in(found: Any) -> list[str]:
    """Return the ids of the jobs that are to be stopped."""
    named = found.get("jobsToStop") if isinstance(found, dict) else None
    given = named if isinstance(named, list) else []
    return [job_id for job_id in given if isinstance(job_id, str)]
