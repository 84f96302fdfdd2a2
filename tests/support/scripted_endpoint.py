"""A deployed endpoint without workers: an emulator whose jobs a function answers, and a proxy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from aiohttp import ClientResponse, ClientSession

from emulator import Emulator, Job, Options
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.proxy import SERVED, Proxy
from support.processes.background import HUNG_S

ACCOUNT = "rpa_account"
WITH_KEY = Options(api_key=ACCOUNT)
# In place of an output: the job yields no more, and does not end.
HANGS = "hangs"

Act = Callable[[Emulator, Job], Coroutine[Any, Any, None]]
# Returns what a job with this input yields.
Answer = Callable[[Any], list[Any]]


class Failed(Exception):
    """In place of an output, or raised: the job fails, with this text as its error."""


@dataclass
class Script:
    """Answers that a test sets, and the inputs of the jobs that were answered."""

    outputs: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)

    def answer(self, given: Any) -> list[Any]:
        self.inputs.append(given)
        return self.outputs


@asynccontextmanager
async def scripted_endpoint(act: Act, options: Options | None = None) -> AsyncIterator[Emulator]:
    """Start an emulator, and a worker that takes its jobs and acts on each."""
    async with Emulator(options) as emulator:
        working = asyncio.create_task(_work(emulator, act))
        try:
            yield emulator
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


async def _work(emulator: Emulator, act: Act) -> None:
    queue = emulator.queue
    async with asyncio.TaskGroup() as acts:
        while True:
            await queue.arrived.wait_for(lambda: queue.has_waiting)
            for job in queue.take(queue.worker("w"), 10):
                acts.create_task(_end(emulator, act, job))


async def _end(emulator: Emulator, act: Act, job: Job) -> None:
    try:
        await act(emulator, job)
    except Exception as error:
        # The test fails for it; whoever waits for the job is not to hang until then.
        emulator.queue.fail(job, repr(error))
        raise


def answering(answer: Answer) -> Act:
    """Return what answers a job by its input."""

    async def act(emulator: Emulator, job: Job) -> None:
        try:
            outputs = answer(job.input)
            for output in outputs:
                if output == HANGS:
                    return
                if isinstance(output, Failed):
                    raise output
                emulator.queue.add_chunk(job, output)
                await asyncio.sleep(0)
        except Failed as failed:
            emulator.queue.fail(job, str(failed))
        else:
            emulator.queue.complete(job, outputs)

    return act


def yielding(*outputs: object, error: str | None = None) -> Act:
    """Return what answers each job with these outputs, then with an error."""
    return answering(lambda _: [*outputs] if error is None else [*outputs, Failed(error)])


hang = yielding("data: 1\n\n", HANGS)


async def only_job(emulator: Emulator) -> Job:
    await emulator.queue.arrived.wait_for(lambda: bool(emulator.queue.jobs), HUNG_S)
    (job,) = emulator.queue.jobs.values()
    return job


@asynccontextmanager
async def answered(
    act: Act, path: str, method: str = "POST", body: object = None, **options: Any
) -> AsyncIterator[tuple[ClientResponse, Job]]:
    """Send a request, on which a worker acts; yield the answer and the job that it became."""
    async with (
        scripted_endpoint(act, Options(**options)) as emulator,
        ClientSession(emulator.root_url) as session,
        session.request(method, path, json=body) as answer,
    ):
        yield answer, await only_job(emulator)


@asynccontextmanager
async def proxied(emulator: Emulator, key: str | None = None, **options: Any) -> AsyncIterator[str]:
    """Start a proxy in front of an emulator; yield its address.

    Args:
        emulator: the platform.
        key: that callers have to send.
        options: of uvicorn, in place of the proxy's.
    """
    endpoint = AsyncEndpoint(emulator.options.endpoint, ACCOUNT, emulator.api_url)
    config = uvicorn.Config(Proxy(endpoint, key), port=0, log_config=None, **(SERVED | options))
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving
