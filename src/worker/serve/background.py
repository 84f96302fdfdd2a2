"""Runs long work in the background of the HTTP server: no request waits for it."""

import asyncio
import contextlib
import json
import logging
import uuid
from typing import Any

from starlette.types import Receive, Send

from worker.app import Worker
from worker.errors import VolumeError, WorkerError
from worker.long_work.kinds import WorkReference

log = logging.getLogger(__name__)

# Seconds until work is retried that a full volume or a busy engine has stopped.
PAUSE_S = 60.0


class BackgroundWork:
    """Runs batches and fine-tunes after the server's startup, each in one job at a time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[WorkReference, asyncio.Task[None]] = {}
        self._to_rerun: set[WorkReference] = set()

    async def handle_lifespan(self, worker: Worker, receive: Receive, send: Send) -> None:
        """Handle an ASGI server's lifespan messages.

        At startup, resume the work that was unfinished when the server last stopped.
        """
        self._worker = worker
        while (await receive())["type"] == "lifespan.startup":
            await self._resume_unfinished_work()
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _resume_unfinished_work(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            unfinished_work = await asyncio.to_thread(self._worker.list_unfinished_work)
        except WorkerError as error:
            # A server without a volume has no unfinished work.
            log.debug("no unfinished work is continued: %s", error)
            return
        for work in unfinished_work:
            log.info("%s continues", work)
            self._start_task(work)

    async def start_work(self, work: WorkReference) -> bool:
        """Start work from any event loop; return False before the server's startup, else True."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_task, work)
        return self._loop is not None

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
        if work in self._to_rerun and not cancelled:
            self._to_rerun.remove(work)
            self._start_task(work)

    async def _run_with_retries(self, work: WorkReference) -> None:
        id = str(uuid.uuid4())
        while error := await self._run_job({"id": id, "input": work.job_input()}):
            log.error("%s stops: %s", work, error["message"])
            if not error["retryable"] and error["code"] != VolumeError.status:
                return
            await asyncio.sleep(PAUSE_S)

    async def _run_job(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Run a job; return its error, or None if it succeeds."""
        async with contextlib.aclosing(self._worker.handle(job)) as yields:
            (chunk,) = [one async for one in yields]
        return json.loads(chunk["error"])["error"] if "error" in chunk else None
