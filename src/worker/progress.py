"""Reports the progress of a long job to the platform while the job runs, and never afterwards."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from worker.bridge import call_at_task_end

log = logging.getLogger(__name__)

# Minimum number of seconds between two updates of a job.
INTERVAL_S = 1.0

# Sends progress to the platform. Arguments: the job as the platform sent it, and the progress.
SendProgress = Callable[[dict[str, Any], Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def report_progress(
    job: dict[str, Any], progress: Callable[[], Any] | None, report: SendProgress | None
) -> AsyncIterator[None]:
    """Report a job's progress while the block runs: immediately, then changes once a second.

    Leaving the block waits for an update that is being sent: no update may arrive after the result.
    A cancelled job has no result, and its update is cancelled, too.
    """
    if progress is None or report is None:
        yield
        return
    finished = asyncio.Event()
    reporter = asyncio.create_task(_report_changes(job, progress, report, finished))
    with call_at_task_end(reporter.cancel):
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            reporter.cancel()
            raise
        finally:
            finished.set()
            # A failed update does not fail the job.
            await asyncio.wait({reporter})
            if not reporter.cancelled() and (error := reporter.exception()):
                log.warning("a job's progress could not be posted: %r", error)


async def _report_changes(
    job: dict[str, Any], progress: Callable[[], Any], report: SendProgress, finished: asyncio.Event
) -> None:
    reported = None
    while not finished.is_set():
        if (current := progress()) != reported:
            await report(job, current)
            reported = current
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S):
                await finished.wait()
