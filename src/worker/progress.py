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


class Progress:
    """The progress of a job, such as ``{"done": 3, "total": 200}``. Update it in any thread.

    A reader waits for changes, and polls nothing: jobs for long work may wait for hours.
    """

    def __init__(self, **values: float) -> None:
        self.values: dict[str, float] = values
        # Wakes the reader; called after each change, in the thread that makes it.
        self.wake_reader: Callable[[], object] = lambda: None

    def update(self, **values: float) -> None:
        # Replaced, since a reader in another thread may be reading the values.
        changed = {**self.values, **values}
        if changed != self.values:
            self.values = changed
            with contextlib.suppress(RuntimeError):  # the reader's loop is closed
                self.wake_reader()


@contextlib.asynccontextmanager
async def report_progress(
    job: dict[str, Any], progress: Progress | None, report: SendProgress | None
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
            progress.wake_reader()
            # A failed update does not fail the job.
            await asyncio.wait({reporter})
            if not reporter.cancelled() and (error := reporter.exception()):
                log.warning("a job's progress could not be posted: %r", error)


async def _report_changes(
    job: dict[str, Any], progress: Progress, report: SendProgress, finished: asyncio.Event
) -> None:
    changed, loop = asyncio.Event(), asyncio.get_running_loop()
    progress.wake_reader = lambda: loop.call_soon_threadsafe(changed.set)
    while not finished.is_set():
        changed.clear()
        await report(job, progress.values)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S):
                await finished.wait()
        if not finished.is_set():
            await changed.wait()
