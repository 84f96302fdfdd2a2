"""Takes jobs while slots are free, runs them, and finishes them before the worker exits."""

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
from job_loop.parsing import find_jobs, find_stopped_job_ids
from job_loop.polls import Poller
from job_loop.wire import PlatformClient, PostNotDelivered
from worker.errors import EngineBusy, ShuttingDown, WorkerError, hide_defects
from worker.record import UNANSWERED, JobRecord

log = logging.getLogger(__name__)

# Minimum seconds between the start of a request for jobs and its hang-up at shutdown. If jobs are
# waiting in the queue, the response is on its way by then.
TAKE_WAIT_S = 0.25
# Seconds for each last step of a shutdown, such as posting the errors of unfinished jobs.
LAST_POSTS_S = 3.0
# Grace period in seconds after an engine died, for posting the errors of its jobs.
DEAD_GRACE_S = 10.0
# Seconds between two checks whether a restarting engine is ready.
READY_INTERVAL_S = 0.1
# Maximum number of jobs that take no slot. The SDK's pings list the ids of all jobs in their URL.
MAX_JOBS_WITHOUT_SLOT = 256
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class JobHandler(Protocol):
    """Interface of ``worker.app.Worker``, and of ``FailedStartHandler`` after a failed startup.

    If a job could not be parsed, its ``input`` is a ``WorkerError`` that says why.
    """

    def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]: ...

    def takes_slot(self, job: dict[str, Any]) -> bool: ...

    def stop_long_work(self) -> None: ...

    def fail_all_jobs(self, error: WorkerError) -> None: ...

    @property
    def ready(self) -> bool: ...


class BackgroundRunner(Protocol):
    """Interface of ``worker.background.BackgroundWork``: work of which the platform knows nothing.

    After ``stop``, ``run`` returns soon; it may be cancelled.
    """

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class JobsInProgress(Protocol):
    """Interface of the SDK's ``JobsProgress``: ids of the running jobs, which its pings report."""

    def add(self, element: str) -> Any: ...

    def remove(self, element: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits for jobs and for the lifetime of a loop."""

    max_jobs: int  # running, or with a result that is being posted; not those that take no slot
    grace_s: float  # for running jobs during a shutdown, unless an engine died
    max_values: float = math.inf  # JSON values in one job
    idle_s: float = math.inf  # without a job, until the loop shuts down
    life_s: float = math.inf  # until the loop shuts down even if jobs keep coming


class JobLoop:
    """Runs jobs until SIGTERM, SIGINT, the death of an engine, or a limit of its lifetime.

    ``engine_death`` is resolved when an engine dies. ``in_progress`` has the ids of the running
    jobs, which the SDK's pings report; this loop updates them.
    """

    def __init__(
        self,
        handler: JobHandler,
        client: PlatformClient,
        limits: LoopLimits,
        engine_death: "Future[None]",
        in_progress: JobsInProgress,
        background: BackgroundRunner | None = None,
    ) -> None:
        self._background = background
        self._handler = handler
        self._client = client
        self._limits = limits
        self._death = engine_death
        self._in_progress = in_progress
        self._job_tasks: dict[str, asyncio.Task[None]] = {}
        # Ids of the jobs whose answers are not complete, and of the jobs that take no slot.
        self._occupied_slots: set[str] = set()
        self._jobs_without_slot: set[str] = set()
        self._shutdown = asyncio.Event()
        self._slot_event = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run until shutdown. The SDK calls this method."""
        uvloop.run(self.run())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._previous_handler = signal.getsignal(signal.SIGTERM)
        for signal_number in SIGNALS:
            loop.add_signal_handler(signal_number, self._on_signal, signal_number)
        self._death.add_done_callback(lambda _: loop.call_soon_threadsafe(self.start_shutdown))
        self._restart_idle_timer()
        if self._limits.life_s < math.inf:
            loop.call_later(self._limits.life_s, self.start_shutdown)
        # A defect in one of the tasks cancels the other tasks and is raised.
        async with self._client, asyncio.TaskGroup() as tasks:
            max_values = self._limits.max_values
            poller = Poller(self._client, find_jobs, reports_outages=True, max_values=max_values)
            take_task = tasks.create_task(self._take_jobs(poller))
            stop_poller = Poller(self._client, find_stopped_job_ids, reports_outages=False)
            stop_task = tasks.create_task(self._cancel_stopped_jobs(stop_poller))
            background_task = tasks.create_task(self._run_background())
            await self._shutdown.wait()
            await poller.close(TAKE_WAIT_S)
            # If a response has started, read all of it, because it may contain jobs.
            left_s = max(LAST_POSTS_S, self._grace_ends_at - time.monotonic())
            await asyncio.wait({take_task}, timeout=left_s)
            await self._drain_jobs()
            left_s = max(0.0, self._grace_ends_at - time.monotonic())
            await asyncio.wait({background_task}, timeout=left_s)
            for task in (take_task, stop_task, background_task):
                task.cancel()

    def start_shutdown(self) -> None:
        """Take no more jobs, stop the handler's long work, and let ``run`` finish the jobs."""
        grace_s = DEAD_GRACE_S if self._death.done() else self._limits.grace_s
        self._grace_ends_at = time.monotonic() + grace_s
        self._shutdown.set()
        self._slot_event.set()
        self._handler.stop_long_work()
        if self._background is not None:
            self._background.stop()

    async def _run_background(self) -> None:
        if self._background is not None:
            await self._background.run()

    def _restart_idle_timer(self) -> None:
        """Restart the countdown to ``idle_s`` if no job is running; stop it otherwise."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._job_tasks and self._limits.idle_s < math.inf:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._limits.idle_s, self.start_shutdown)

    def _on_signal(self, received_signal: int) -> None:
        log.info(
            "%s: taking no more jobs; %d running jobs have %g s to finish",
            signal.Signals(received_signal).name,
            len(self._job_tasks),
            self._limits.grace_s,
        )
        self.start_shutdown()
        for signal_number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(signal_number)
            signal.signal(signal_number, self._previous_handler)

    async def _drain_jobs(self) -> None:
        """Wait for the running jobs; after the grace period, fail and cancel them as retryable."""
        await self._wait_for_jobs(self._grace_ends_at)
        if self._job_tasks:
            log.warning("%d unfinished jobs fail with a retryable error", len(self._job_tasks))
            self._handler.fail_all_jobs(ShuttingDown())
            await self._wait_for_jobs(time.monotonic() + LAST_POSTS_S)
        for task in self._job_tasks.values():
            task.cancel()
        await self._wait_for_jobs(time.monotonic() + LAST_POSTS_S)

    async def _wait_for_jobs(self, until: float) -> None:
        """Wait until no job is running, but not beyond ``until`` (``time.monotonic``)."""
        while self._job_tasks and (left_s := until - time.monotonic()) > 0:
            await asyncio.wait(self._job_tasks.values(), timeout=left_s)

    async def _take_jobs(self, poller: Poller[dict[str, Any]]) -> None:
        while True:
            while not self._shutdown.is_set() and not self._handler.ready:  # noqa: ASYNC110 - engines rarely restart, and their loop can't set this loop's Event
                await asyncio.sleep(READY_INTERVAL_S)
            while not self._shutdown.is_set() and self._free_slot_count <= 0:
                self._slot_event.clear()
                await self._slot_event.wait()
            if self._shutdown.is_set():
                return
            url = self._client.urls.take_jobs_url(
                self._free_slot_count, is_busy=bool(self._job_tasks)
            )
            for job in await poller.poll(url):
                self._start_job(job)

    @property
    def _free_slot_count(self) -> int:
        """Number of jobs to take, which is limited if results can't be posted."""
        max_jobs = self._limits.max_jobs
        jobs_with_slot = len(self._job_tasks) - len(self._jobs_without_slot)
        return min(max_jobs - len(self._occupied_slots), 2 * max_jobs - jobs_with_slot)

    def _free_slot(self, job_id: str) -> None:
        self._occupied_slots.discard(job_id)
        self._slot_event.set()

    async def _cancel_stopped_jobs(self, poller: Poller[str]) -> None:
        while url := self._client.urls.stopped_jobs_url:
            for job_id in await poller.poll(url):
                if task := self._job_tasks.get(job_id):
                    task.cancel()

    def _start_job(self, job: dict[str, Any]) -> None:
        job_id: str = job["id"]
        if job_id in self._job_tasks:
            log.warning("the platform sent job %s twice; it runs once", job_id)
            return
        if self._handler.takes_slot(job):
            self._occupied_slots.add(job_id)
        elif len(self._jobs_without_slot) < MAX_JOBS_WITHOUT_SLOT:
            self._jobs_without_slot.add(job_id)
        else:
            message = (
                f"This worker has {MAX_JOBS_WITHOUT_SLOT} jobs for batches and fine-tunes. "
                "Send the job again when some of them have ended."
            )
            self._occupied_slots.add(job_id)
            job = {**job, "input": EngineBusy(message)}
        task = asyncio.create_task(self._run_job(job))
        self._job_tasks[job_id] = task
        self._in_progress.add(job_id)
        self._restart_idle_timer()

        def on_done(task: asyncio.Task[None]) -> None:
            del self._job_tasks[job_id]
            self._jobs_without_slot.discard(job_id)
            self._in_progress.remove(job_id)
            self._free_slot(job_id)
            self._restart_idle_timer()
            if not task.cancelled() and (defect := task.exception()):
                log.error(
                    "job %s failed because of a defect in the worker", job_id, exc_info=defect
                )

        task.add_done_callback(on_done)

    async def _run_job(self, job: dict[str, Any]) -> None:
        record = JobRecord.from_job(job)
        delivery = Delivery(self._client, record)
        try:
            error = await self._post_yields(job, record, delivery)
            # The engine is done with this job: take another one while the result is posted.
            self._free_slot(record.id)
            if error is None:
                await delivery.post_result()
            else:
                await delivery.post_error(error)
        except asyncio.CancelledError:
            if record.status == HTTPStatus.OK:
                record.status = UNANSWERED
            raise
        except PostNotDelivered as not_delivered:
            record.status = HTTPStatus.GATEWAY_TIMEOUT
            log.error("the result of job %s could not be delivered: %s", record.id, not_delivered)  # noqa: TRY400 - no defect, so no traceback
        finally:
            record.write_to_log()

    async def _post_yields(
        self, job: dict[str, Any], record: JobRecord, delivery: Delivery
    ) -> str | None:
        """Run a job and post its yields; return the error with which it fails, or None."""
        try:
            with hide_defects(record.id):
                async with contextlib.aclosing(self._handler.handle(job, record)) as yields:
                    async for value in yields:
                        if isinstance(value, dict) and value.get("error"):
                            return str(value["error"])
                        await delivery.add(value)
        except WorkerError as error:
            record.status = error.status
            return json.dumps(error.body(record.id), ensure_ascii=False)
        return None
