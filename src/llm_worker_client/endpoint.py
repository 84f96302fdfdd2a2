"""Takes the steps of requests to a deployed endpoint: over httpx2, with asyncio or without."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import httpx2

from llm_worker_client.exchange import Exchange
from llm_worker_client.jobs import ENDED, cancel
from llm_worker_client.mapping import Request
from llm_worker_client.steps import (
    Ask,
    Head,
    NotStored,
    Pause,
    Reply,
    Step,
    Steps,
    Store,
    Unreachable,
)
from llm_worker_client.volume.shelf import Shelf
from llm_worker_client.wire import LIMITS, Rates, Wire, reply, unreachable

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume


class Answer:
    """The response to a request: its head, then the parts of its body as they come."""

    def __init__(self, endpoint: "Endpoint", exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._steps = exchange.steps()
        self.head = Head(0)

    def begin(self) -> None:
        """Wait for the head."""
        step = self._endpoint.advance(self._steps)
        assert isinstance(step, Head)
        self.head = step

    def parts(self) -> Iterator[bytes]:
        while isinstance(part := self._endpoint.advance(self._steps), bytes):
            yield part

    def close(self) -> None:
        """Cancel the job, if it still runs."""
        self._steps.close()
        job = self._exchange.job
        if job.id is not None and not job.over:
            job.over = True
            with suppress(Unreachable):
                self._endpoint.advance(cancel(job.id))


class Endpoint:
    """A deployed endpoint, called from threads.

    Args:
        id: the endpoint's.
        api_key: the account's; None: the environment's or the platform's file's.
        base_url: of the platform; None: RunPod's.
        volume: where files go that no job holds; None: the environment's, if it names one.

    Raises:
        NoKey: there is no key.
    """

    def __init__(
        self,
        id: str,
        api_key: str | None = None,
        base_url: str | None = None,
        volume: "Volume | None" = None,
    ) -> None:
        self.id = id
        self.shelf = Shelf(volume)
        self._rates = Rates()
        self._wire = Wire(id, api_key, base_url)
        self._http = httpx2.HTTPTransport(limits=LIMITS, proxy=self._wire.proxy)

    def answer(self, request: Request, patience_s: float | None = None) -> Answer:
        """Answer a request as far as its head; see ``Exchange``.

        Raises:
            TookTooLong: the caller waits no longer; the job is cancelled.
        """
        answer = Answer(self, Exchange(request, self.id, patience_s))
        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    def advance(self, steps: Steps[Any]) -> Step | None:
        """Take steps up to the next that is for the caller; None: there is none."""
        with suppress(StopIteration):
            step = steps.send(None)
            while True:
                if isinstance(step, Ask | Store):
                    try:
                        answer = self._reply(step)
                    except (Unreachable, NotStored) as failed:
                        step = steps.throw(failed)
                    else:
                        step = steps.send(answer)
                elif isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    return step
        return None

    def close(self) -> None:
        self._http.close()

    def _reply(self, step: Ask | Store) -> Reply | str:
        if isinstance(step, Ask):
            return self._ask(step)
        return self.shelf.put(step, threading.Event())

    def _ask(self, ask: Ask) -> Reply:
        if wait := self._rates.wait(ask.operation):
            time.sleep(wait)
        try:
            response = self._http.handle_request(self._wire.request(ask))
            response.read()
        except httpx2.TransportError as error:
            raise unreachable(error) from None
        return reply(response)


class AsyncAnswer:
    """As ``Answer``, with asyncio."""

    def __init__(self, endpoint: "AsyncEndpoint", exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._steps = exchange.steps()
        self.head = Head(0)

    async def begin(self) -> None:
        step = await self._endpoint.advance(self._steps)
        assert isinstance(step, Head)
        self.head = step

    async def parts(self) -> AsyncIterator[bytes]:
        while isinstance(part := await self._endpoint.advance(self._steps), bytes):
            yield part

    def leave(self) -> None:
        """Cancel the job, if it still runs; nobody waits for it."""
        self._endpoint.answers.discard(self)
        job = self._exchange.job
        if job.id is not None and not job.over:
            job.over = True
            self._endpoint.cancel_soon(job.id)


class AsyncEndpoint:
    """A deployed endpoint, called from one event loop; see ``Endpoint``."""

    def __init__(
        self,
        id: str,
        api_key: str | None = None,
        base_url: str | None = None,
        volume: "Volume | None" = None,
    ) -> None:
        self.id = id
        self.shelf = Shelf(volume)
        self._rates = Rates()
        self._wire = Wire(id, api_key, base_url)
        self._http = httpx2.AsyncHTTPTransport(limits=LIMITS, proxy=self._wire.proxy)
        # Those that may still have a job to cancel.
        self.answers = WeakSet[AsyncAnswer]()
        self._leaving: set[asyncio.Task[None]] = set()
        # Jobs that are to be cancelled, until they are.
        self._given_up: set[str] = set()

    async def answer(self, request: Request, patience_s: float | None = None) -> AsyncAnswer:
        """Answer a request as far as its head; a cancelled call cancels its job.

        Raises:
            TookTooLong: the caller waits no longer; the job is cancelled.
        """
        answer = AsyncAnswer(self, Exchange(request, self.id, patience_s))
        self.answers.add(answer)
        try:
            await answer.begin()
        except BaseException:
            answer.leave()
            raise
        return answer

    async def advance(self, steps: Steps[Any]) -> Step | None:
        """Take steps up to the next that is for the caller; None: there is none."""
        with suppress(StopIteration):
            step = steps.send(None)
            while True:
                if isinstance(step, Ask | Store):
                    try:
                        answer = await self._reply(step)
                    except (Unreachable, NotStored) as failed:
                        step = steps.throw(failed)
                    else:
                        step = steps.send(answer)
                elif isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    return step
        return None

    def cancel_soon(self, job_id: str) -> None:
        """Cancel a job in the background."""
        self._given_up.add(job_id)
        self._later(self._cancel(job_id))

    async def settled(self) -> None:
        """Wait until all jobs that were given up are cancelled."""
        if self._leaving:
            # Not gather, which would cancel them with the task that waits.
            await asyncio.wait(self._leaving)
        # A loop that ends has cancelled the tasks that cancel jobs, too.
        for job_id in tuple(self._given_up):
            await self._cancel(job_id)

    async def aclose(self) -> None:
        """Cancel the jobs of answers that nobody has left, then close the connections."""
        for answer in tuple(self.answers):
            answer.leave()
        await self.settled()
        await self._http.aclose()

    async def _reply(self, step: Ask | Store) -> Reply | str:
        if isinstance(step, Ask):
            return await self._ask(step)
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self.shelf.put, step, stop)
        finally:
            # A caller that hangs up leaves the thread, which is to end.
            stop.set()

    async def _ask(self, ask: Ask) -> Reply:
        if wait := self._rates.wait(ask.operation):
            await asyncio.sleep(wait)
        if not ask.starts_job:
            return await self._send(ask)
        # A caller that hangs up now leaves a job of which only the answer has the id.
        sending = asyncio.create_task(self._send(ask))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            self._later(self._cancel_started(sending))
            raise

    async def _send(self, ask: Ask) -> Reply:
        try:
            response = await self._http.handle_async_request(self._wire.request(ask))
            await response.aread()
        except httpx2.TransportError as error:
            raise unreachable(error) from None
        return reply(response)

    async def _cancel_started(self, sending: asyncio.Task[Reply]) -> None:
        with suppress(Unreachable, ValueError):
            report = json.loads((await sending).content)
            if report.get("status") not in ENDED and "id" in report:
                self._given_up.add(report["id"])
                await self._cancel(report["id"])

    async def _cancel(self, job_id: str) -> None:
        with suppress(Unreachable):
            await self.advance(cancel(job_id))
        self._given_up.discard(job_id)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
