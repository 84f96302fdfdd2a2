"""A worker that must not exit during a scenario."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.processes.emulated_endpoint import EmulatedEndpoint, emulated_endpoint


class WorkerExited(Exception):
    """The worker exited on its own."""


@asynccontextmanager
async def start_watched_endpoint(
    environ: dict[str, str], log: Path, **options: Any
) -> AsyncIterator[EmulatedEndpoint]:
    """Start a worker; cancel the block if the worker exits.

    Raises:
        WorkerExited: If the worker exits.
    """
    async with emulated_endpoint(environ, log, **options) as endpoint:
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_cancel_on_exit(endpoint, task))
        try:
            yield endpoint
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
            last_line = [*endpoint.log.splitlines(), "nothing printed"][-1]
            raise WorkerExited(f"status {watch.result()}; {log}: {last_line}") from None
        finally:
            watch.cancel()


async def _cancel_on_exit(endpoint: EmulatedEndpoint, task: asyncio.Task[Any]) -> int:
    while (status := endpoint.worker.process.poll()) is None:
        await asyncio.sleep(0.5)
    task.cancel()
    return status
