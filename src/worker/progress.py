"""Tells the platform how far a long job has come, while it runs and never after."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from worker.bridge import at_end_of_task

log = logging.getLogger(__name__)

# Seconds between two updates of a job, at least.
INTERVAL_S = 1.0

# Hands one job's progress to the platform.
Report = Callable[[dict[str, Any], Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def reported(
    job: dict[str, Any], progress: Callable[[], Any] | None, report: Report | None
) -> AsyncIterator[None]:
    """Report a job's progress while the block runs: at once, then whatever has changed.

    On leaving, an update that is on its way is waited for: none may arrive after the result.
    """
    if progress is None or report is None:
        yield
        return
    over = asyncio.Event()
    telling = asyncio.create_task(_tell(job, progress, report, over))
    try:
        with at_end_of_task(over.set):
            yield
    finally:
        # An update that failed is no reason for the job to fail.
        await asyncio.wait({telling})
        if not telling.cancelled() and (error := telling.exception()):
            log.warning("a job's progress could not be told: %r", error)


async def _tell(
    job: dict[str, Any], progress: Callable[[], Any], report: Report, over: asyncio.Event
) -> None:
    told = None
    while not over.is_set():
        if (now := progress()) != told:
            await report(job, now)
            told = now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S):
                await over.wait()
