"""Progress of a long job, reported to the platform while the job runs and never after."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from worker.bridge import at_end_of_task

log = logging.getLogger(__name__)

# The shortest time between two updates of a job.
INTERVAL_S = 1.0

# Sends a job's progress to the platform: the job as the platform handed it, and the progress.
Report = Callable[[dict[str, Any], Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def reporting(
    job: dict[str, Any], progress: Callable[[], Any] | None, report: Report | None
) -> AsyncIterator[None]:
    """Report a job's progress while the block runs: at once, then at every change.

    Leaving the block waits for an update that is being sent: none may arrive after the result. A
    job that is cancelled has no result, and its update is cancelled, too.
    """
    if progress is None or report is None:
        yield
        return
    over = asyncio.Event()
    reporter = asyncio.create_task(_report_changes(job, progress, report, over))
    with at_end_of_task(reporter.cancel):
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            reporter.cancel()
            raise
        finally:
            over.set()
            # An update that fails does not fail the job.
            await asyncio.wait({reporter})
            if not reporter.cancelled() and (error := reporter.exception()):
                log.warning("a job's progress could not be posted: %r", error)


async def _report_changes(
    job: dict[str, Any], progress: Callable[[], Any], report: Report, over: asyncio.Event
) -> None:
    reported = None
    while not over.is_set():
        if (current := progress()) != reported:
            await report(job, current)
            reported = current
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S):
                await over.wait()
