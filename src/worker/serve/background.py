"""Batches that run in the background of a server: nobody's request waits for them."""

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.types import Receive, Send

from worker.batches.store import Batches
from worker.errors import VolumeError, WorkerError

log = logging.getLogger(__name__)

# Seconds until a batch goes on that a full volume or a busy engine has stopped.
PAUSE_S = 60.0

# Answers a job, as ``Worker.handle``.
Handle = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]


class Background:
    """Runs each batch as a job of its own, once.

    Args:
        batches: of the volume.
    """

    # Set by whoever has the worker, which in turn starts batches here.
    handle: Handle

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[str, asyncio.Task[None]] = {}

    async def live(self, receive: Receive, send: Send) -> None:
        """Answer what ASGI servers tell of their beginning and their end."""
        while (await receive())["type"] == "lifespan.startup":
            await self._begin()
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        """Go on with the batches that were left when the server ended the last time."""
        self._loop = asyncio.get_running_loop()
        try:
            left = await asyncio.to_thread(self._batches.unfinished)
        except WorkerError as error:
            # A server without a volume has none.
            log.debug("no batches: %s", error)
            return
        for batch in left:
            log.info("batch %s goes on", batch.id)
            self._run(batch.id)

    async def start(self, batch_id: str) -> bool:
        """Run a batch, from any loop; return whether the server has begun to."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._run, batch_id)
        return self._loop is not None

    def _run(self, batch_id: str) -> None:
        if batch_id not in self._running:
            task = asyncio.create_task(self._answer(batch_id))
            self._running[batch_id] = task
            task.add_done_callback(lambda _: self._running.pop(batch_id))

    async def _answer(self, batch_id: str) -> None:
        job = {"id": str(uuid.uuid4()), "input": {"batch": {"id": batch_id}}}
        while error := await self._error_of(job):
            log.error("batch %s stops: %s", batch_id, error["message"])
            if not error["retryable"] and error["code"] != VolumeError.status:
                return
            await asyncio.sleep(PAUSE_S)

    async def _error_of(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Run a job; return its error, if it fails."""
        async with contextlib.aclosing(self.handle(job)) as yields:
            (found,) = [one async for one in yields]
        return json.loads(found["error"])["error"] if "error" in found else None
