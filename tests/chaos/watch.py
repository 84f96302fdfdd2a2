"""A worker that has to live for as long as a scenario."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.processes.emulated_endpoint import EmulatedEndpoint, emulated_endpoint


class WorkerExited(Exception):
    """It has ended on its own."""


@asynccontextmanager
async def lasting_endpoint(
    environ: dict[str, str], log: Path, **options: Any
) -> AsyncIterator[EmulatedEndpoint]:
    """Start a worker; if it exits, the block is cancelled.

    Raises:
        WorkerExited: it has exited.
    """
    async with emulated_endpoint(environ, log, **options) as endpoint:
        block = asyncio.current_task()
        assert block is not None
        watch = asyncio.create_task(_until_exit(endpoint, block))
        try:
            yield endpoint
        except asyncio.CancelledError:
            if not watch.done():
                raise
            block.uncancel()
            last_line = [*endpoint.logged.splitlines(), "nothing printed"][-1]
            raise WorkerExited(f"status {watch.result()}; {log}: {last_line}") from None
        finally:
            watch.cancel()


async def _until_exit(endpoint: EmulatedEndpoint, block: asyncio.Task[Any]) -> int:
    while (status := endpoint.worker.process.poll()) is None:
        await asyncio.sleep(0.5)
    block.cancel()
    return status
