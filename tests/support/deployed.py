"""A deployed endpoint for the client: an emulator, a function in place of its workers, a proxy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from emulator import Emulator, Job, Options
from llm_worker_client.connections import SERVED
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.proxy import Proxy

ACCOUNT = "rpa_account"
# Of an answer: the job yields no more, and does not end.
HANGS = "hangs"

# Returns what a job with this input yields, or raises Failed.
Yields = Callable[[Any], list[Any]]


class Failed(Exception):
    """A job fails, with this text as its error."""


@dataclass
class Scripted:
    """What jobs held, and what the next one yields; an exception fails it."""

    given: list[Any] = field(default_factory=list)
    yields: list[Any] = field(default_factory=list)

    def answer(self, given: Any) -> list[Any]:
        self.given.append(given)
        if self.yields and isinstance(self.yields[0], Exception):
            raise self.yields[0]
        return self.yields


@asynccontextmanager
async def deployed(yields: Yields, **options: Any) -> AsyncIterator[Emulator]:
    """Start an emulator with the account's key, whose jobs a function answers."""
    async with Emulator(Options(api_key=ACCOUNT, **options)) as emulator:
        working = asyncio.create_task(_work(emulator, yields))
        yield emulator
        working.cancel()


async def _work(emulator: Emulator, yields: Yields) -> None:
    queue = emulator.queue
    while True:
        await queue.arrived.wait_for(lambda: queue.has_waiting)
        for job in queue.take(queue.worker("w"), 10):
            _answer(emulator, job, yields)


def _answer(emulator: Emulator, job: Job, yields: Yields) -> None:
    try:
        outputs = yields(job.input)
    except Failed as failed:
        emulator.queue.fail(job, str(failed))
        return
    for output in outputs:
        if output == HANGS:
            return
        emulator.queue.add_chunk(job, output)
    emulator.queue.complete(job, outputs)


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
