"""Long work that runs in the background of a server: nobody's request waits for it."""

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from starlette.types import Receive, Send

from worker.errors import VolumeError, WorkerError
from worker.job.long_work import LongWork

log = logging.getLogger(__name__)

# Seconds until work goes on that a full volume or a busy engine has stopped.
PAUSE_S = 60.0

# Answers a job, as ``Worker.handle``.
Handle = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]


class Background:
    """Runs each piece of work as a job of its own, once; ``take`` has to be called first."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[LongWork, asyncio.Task[None]] = {}
        self._again: set[LongWork] = set()

    def take(self, handle: Handle, unfinished: Callable[[], Iterable[LongWork]]) -> None:
        """Take the worker, which in turn starts work here.

        Args:
            handle: answers a job.
            unfinished: returns what is left on the volume, the oldest first; called in a thread.
        """
        self._handle, self._unfinished = handle, unfinished

    async def live(self, receive: Receive, send: Send) -> None:
        """Answer what ASGI servers tell of their beginning and their end."""
        while (await receive())["type"] == "lifespan.startup":
            await self._begin()
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        """Go on with the work that was left when the server ended the last time."""
        self._loop = asyncio.get_running_loop()
        try:
            left = await asyncio.to_thread(lambda: [*self._unfinished()])
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
        async with contextlib.aclosing(self._handle(job)) as yields:
            (found,) = [one async for one in yields]
        return json.loads(found["error"])["error"] if "error" in found else None
