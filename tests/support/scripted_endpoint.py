"""A deployed endpoint whose jobs are handled by a function, and a proxy in front of it."""

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
from llm_worker_client.proxy import UVICORN_OPTIONS, Proxy
from support.processes.background import HUNG_S

ACCOUNT = "rpa_account"
WITH_KEY = Options(api_key=ACCOUNT)
# Replaces an output: the job yields nothing more, and does not end.
HANG = "hangs"

JobHandler = Callable[[Emulator, Job], Coroutine[Any, Any, None]]
# Returns the yields of a job with this input.
OutputsFunction = Callable[[Any], list[Any]]


class JobFailure(Exception):
    """Replaces an output, or is raised: the job fails with this message."""


@dataclass
class Script:
    """The outputs of jobs, which a test sets, and the inputs of all jobs."""

    outputs: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)

    def answer(self, job_input: Any) -> list[Any]:
        self.inputs.append(job_input)
        return self.outputs


@asynccontextmanager
async def scripted_endpoint(
    act: JobHandler,
    options: Options | None = None,
    is_warm: Callable[[], object] = lambda: True,
) -> AsyncIterator[Emulator]:
    """Start an emulator, and a worker that takes its jobs and calls a handler for each.

    It takes jobs as soon as ``is_warm`` returns true.
    """
    async with Emulator(options) as emulator:
        working = asyncio.create_task(_run_worker(emulator, act, is_warm))
        try:
            yield emulator
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


async def _run_worker(emulator: Emulator, act: JobHandler, is_warm: Callable[[], object]) -> None:
    queue = emulator.queue
    while not is_warm():
        await asyncio.sleep(0.01)
    async with asyncio.TaskGroup() as acts:
        while True:
            await queue.changed.wait_for(lambda: queue.has_available_jobs)
            for job in queue.take(queue.get_worker("w"), 10):
                acts.create_task(_handle_job(emulator, act, job))


async def _handle_job(emulator: Emulator, act: JobHandler, job: Job) -> None:
    try:
        await act(emulator, job)
    except Exception as error:
        # The test fails with this error. End the job, so that its caller does not wait until then.
        emulator.queue.fail(job, repr(error))
        raise


def make_handler(answer: OutputsFunction) -> JobHandler:
    """Return a handler that answers a job with outputs that depend on its input."""

    async def act(emulator: Emulator, job: Job) -> None:
        try:
            outputs = answer(job.input)
            for output in outputs:
                if output == HANG:
                    return
                if isinstance(output, JobFailure):
                    raise output
                emulator.queue.add_chunk(job, output)
                await asyncio.sleep(0)
        except JobFailure as failed:
            emulator.queue.fail(job, str(failed))
        else:
            emulator.queue.complete(job, outputs)

    return act


def yield_outputs(*outputs: object, error: str | None = None) -> JobHandler:
    """Return a handler that yields the same outputs for each job, then an error if there is one."""
    return make_handler(lambda _: [*outputs] if error is None else [*outputs, JobFailure(error)])


hang = yield_outputs("data: 1\n\n", HANG)


async def only_job(emulator: Emulator) -> Job:
    await emulator.queue.changed.wait_for(lambda: bool(emulator.queue.jobs), HUNG_S)
    (job,) = emulator.queue.jobs.values()
    return job


@asynccontextmanager
async def send_request(
    act: JobHandler, path: str, method: str = "POST", body: object = None, **options: Any
) -> AsyncIterator[tuple[ClientResponse, Job]]:
    """Send a request that a handler answers; yield the response and the job that it created."""
    async with (
        scripted_endpoint(act, Options(**options)) as emulator,
        ClientSession(emulator.root_url) as session,
        session.request(method, path, json=body) as answer,
    ):
        yield answer, await only_job(emulator)


@asynccontextmanager
async def run_proxy(
    emulator: Emulator, key: str | None = None, serves_network: bool = False, **options: Any
) -> AsyncIterator[str]:
    """Run a proxy in front of an emulator; yield the proxy's URL.

    With ``serves_network``, it behaves as on an address that other machines reach. The options for
    uvicorn override the proxy's.
    """
    endpoint = AsyncEndpoint(emulator.options.endpoint, ACCOUNT, emulator.api_url)
    config = uvicorn.Config(
        Proxy(endpoint, key, serves_network=serves_network),
        port=0,
        log_config=None,
        **(UVICORN_OPTIONS | options),
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving
