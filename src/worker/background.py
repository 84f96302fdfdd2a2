"""Runs long work without jobs of the platform: a server's own, and the volume's unfinished work.

``worker.long_work`` says who else goes on with work whose worker has died.
"""

import asyncio
import contextlib
import json
import logging
import math
import time
import uuid
from collections import Counter

from worker.app import Worker
from worker.errors import VolumeError, WorkerError
from worker.job_sender import MAX_RUNTIME_S
from worker.long_work.records import WorkReference
from worker.routes.resources import StartWork

log = logging.getLogger(__name__)

# Seconds between two looks for work that no worker runs.
LOOK_S = 5.0
# Maximum unfinished work of one kind that is taken up; a part of it waits for a place.
MAX_TAKEN_UP = 16
# Seconds until work is retried that a full volume or a busy engine has stopped, and until a job is
# sent again that no worker has taken.
PAUSE_S = 60.0


class BackgroundWork:
    """Runs batches and fine-tunes that no job of the platform runs, each once at a time.

    ``send_job`` sends a job of the platform that runs work, in place of running it here: the
    platform may stop a worker without a job as idle. It is None if the worker can't send jobs.
    """

    def __init__(
        self, worker: Worker, send_job: StartWork | None = None, *, is_server: bool = False
    ) -> None:
        self._worker = worker
        self._send_job = send_job
        self._is_server = is_server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[WorkReference, asyncio.Task[None]] = {}
        self._to_rerun: set[WorkReference] = set()
        # Work that this worker can't run, for example because it serves another model.
        self._refused: set[WorkReference] = set()
        # Times by ``time.monotonic`` at which jobs were sent.
        self._sent_at: dict[WorkReference, float] = {}
        self._look_event, self._stop_event = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Take up unfinished work of the volume until ``stop``, then wait for its running parts."""
        self._loop = asyncio.get_running_loop()
        while not self._stop_event.is_set():
            self._look_event.clear()
            await self._take_up_unfinished_work()
            await _wait(self._look_event, LOOK_S)
        if self._running:
            await asyncio.wait(self._running.values())

    def stop(self) -> None:
        """Take up no more work; call this on the loop of ``run``."""
        self._stop_event.set()
        self._look_event.set()

    async def start_work(self, work: WorkReference) -> bool:
        """Start work from any event loop; return False before the call of ``run``, else True."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_task, work)
        return self._loop is not None

    async def _take_up_unfinished_work(self) -> None:
        try:
            orphans = await asyncio.to_thread(self._worker.list_orphans)
        except WorkerError as error:
            # A worker without a volume has no unfinished work.
            log.debug("no unfinished work is continued: %s", error)
            return
        except Exception:
            # A defect must not end a worker that answers other requests.
            log.exception("unfinished work can't be found")
            return
        counts = Counter(work.kind for work in self._running)
        for orphan in orphans:
            work = orphan.work
            if work in self._running or work in self._refused:
                continue
            if self._send_job is not None and not orphan.has_job:
                now = time.monotonic()
                if now - self._sent_at.get(work, -math.inf) < PAUSE_S:
                    continue
                if await self._send_job(work):
                    log.info("%s continues in a job that was sent now", work)
                    self._sent_at[work] = now
                    continue
            if counts[work.kind] < MAX_TAKEN_UP:
                counts[work.kind] += 1
                log.info("%s continues", work)
                self._start_task(work)

    def _start_task(self, work: WorkReference) -> None:
        if work in self._running:
            # The running job may be ending because the work was paused; it has been resumed since.
            self._to_rerun.add(work)
            return
        task = asyncio.create_task(self._run_with_retries(work))
        self._running[work] = task
        task.add_done_callback(lambda ended: self._on_task_done(work, cancelled=ended.cancelled()))

    def _on_task_done(self, work: WorkReference, *, cancelled: bool) -> None:
        del self._running[work]
        self._look_event.set()
        if work in self._to_rerun and not cancelled:
            self._to_rerun.remove(work)
            self._start_task(work)

    async def _run_with_retries(self, work: WorkReference) -> None:
        # Without a job of the platform, its time limit does not count.
        options = {} if self._is_server else {"background": True, "max_runtime_sec": MAX_RUNTIME_S}
        id = str(uuid.uuid4())
        while True:
            # ``handle`` removes the input from a job.
            job = {"id": id, "input": work.job_input(**options)}
            async with contextlib.aclosing(self._worker.handle(job)) as yields:
                (chunk,) = [one async for one in yields]
            if "error" not in chunk:
                return
            error = json.loads(chunk["error"])["error"]
            log.error("%s stops: %s", work, error["message"])
            if not error["retryable"] and error["code"] != VolumeError.status:
                self._refused.add(work)
                return
            if await _wait(self._stop_event, PAUSE_S):
                return


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
