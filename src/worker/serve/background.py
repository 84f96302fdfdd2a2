"""Long work that runs in the background of a server: nobody's request waits for it."""

import asyncio
import contextlib
import json
import logging
import uuid
from typing import Any

from starlette.types import Receive, Send

from worker.app import Worker
from worker.errors import VolumeError, WorkerError
from worker.long_work.kinds import LongWork

log = logging.getLogger(__name__)

# Seconds until work goes on that a full volume or a busy engine has stopped.
PAUSE_S = 60.0


class Background:
    """Runs each piece of work as a job of its own, once; nothing runs before ``live``."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[LongWork, asyncio.Task[None]] = {}
        self._again: set[LongWork] = set()

    async def live(self, worker: Worker, receive: Receive, send: Send) -> None:
        """Answer an ASGI server's lifespan messages; between them the worker runs what is started.

        At startup it goes on with the work that was left when the server ended the last time.
        """
        self._worker = worker
        while (await receive())["type"] == "lifespan.startup":
            await self._begin()
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            left = await asyncio.to_thread(self._worker.unfinished)
        except WorkerError as error:
            # A server without a volume has none.
            log.debug("nothing goes on: %s", error)
            return
        for work in left:
            log.info("%s goes on", work)
            self._run(work)

    async def start(self, work: LongWork) -> bool:
        """Run some work, from any loop; return whether the server has begun to."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._run, work)
        return self._loop is not None

    def _run(self, work: LongWork) -> None:
        if work in self._running:
            # It may be about to end for a reason that is gone by now: it was paused.
            self._again.add(work)
            return
        task = asyncio.create_task(self._answer(work))
        self._running[work] = task
        task.add_done_callback(lambda ended: self._ended(work, cancelled=ended.cancelled()))

    def _ended(self, work: LongWork, *, cancelled: bool) -> None:
        del self._running[work]
        if work in self._again and not cancelled:
            self._again.remove(work)
            self._run(work)

    async def _answer(self, work: LongWork) -> None:
        job = {"id": str(uuid.uuid4()), "input": work.input()}
        while error := await self._error_of(job):
            log.error("%s stops: %s", work, error["message"])
            if not error["retryable"] and error["code"] != VolumeError.status:
                return
            await asyncio.sleep(PAUSE_S)

    async def _error_of(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Run a job; return its error, if it fails."""
        async with contextlib.aclosing(self._worker.handle(job)) as yields:
            (found,) = [one async for one in yields]
        return json.loads(found["error"])["error"] if "error" in found else None
