"""An emulator with a function in place of a worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession

from emulator import Emulator, Job, Options

Act = Callable[[Emulator, Job], Coroutine[Any, Any, None]]


@asynccontextmanager
async def served(act: Act, options: Options | None = None) -> AsyncIterator[Emulator]:
    """Start an emulator, and a worker that takes one job and acts on it."""
    async with Emulator(options) as emulator:

        async def work() -> None:
            queue = emulator.queue
            await queue.arrived.wait_for(lambda: queue.has_waiting)
            (job,) = queue.take(queue.worker("w"), 1)
            await act(emulator, job)

        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(work())
            yield emulator
            worker.cancel()


@asynccontextmanager
async def answered(
    act: Act, path: str, method: str = "POST", body: object = None, **options: Any
) -> AsyncIterator[tuple[ClientResponse, Job]]:
    """Send a request, on which a worker acts; yield the answer and the job that it became."""
    async with (
        served(act, Options(**options)) as emulator,
        ClientSession(emulator.root_url) as session,
        session.request(method, path, json=body) as answer,
    ):
        yield answer, await only_job(emulator)


def yielding(*outputs: object, error: str | None = None) -> Act:
    async def act(emulator: Emulator, job: Job) -> None:
        for output in outputs:
            emulator.queue.add_chunk(job, output)
            await asyncio.sleep(0)
        if error is None:
            emulator.queue.complete(job, list(outputs))
        else:
            emulator.queue.fail(job, error)

    return act


async def hang(emulator: Emulator, job: Job) -> None:
    emulator.queue.add_chunk(job, "data: 1\n\n")


async def only_job(emulator: Emulator) -> Job:
    await emulator.queue.arrived.wait_for(lambda: bool(emulator.queue.jobs), 60)
    (job,) = emulator.queue.jobs.values()
    return job
