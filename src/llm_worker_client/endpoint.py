"""Performs the steps of requests to a deployed endpoint with httpx2, sync or with asyncio."""

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
from llm_worker_client.jobs import ENDED_STATUSES, cancel_job
from llm_worker_client.mapping.requests import Request
from llm_worker_client.mapping.responses import Refusal
from llm_worker_client.steps import (
    FileNotStored,
    Pause,
    PlatformReply,
    PlatformRequest,
    PlatformUnreachable,
    ResponseHead,
    Step,
    Steps,
    StoreFile,
)
from llm_worker_client.volume import NoSpace, VolumeError, VolumeNotConfigured, open_volume
from llm_worker_client.wire import (
    CONNECTION_LIMITS,
    LargeReplies,
    RateLimiter,
    ReplyReader,
    RequestBuilder,
    to_platform_unreachable,
)

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume


class LazyVolume:
    """A volume that is opened at its first use, by default the environment's; thread-safe."""

    def __init__(self, volume: "Volume | None") -> None:
        self._volume = volume
        self._lock = threading.Lock()

    def configuration_error(self) -> str | None:
        """Open the volume; return None, or a message if settings or a package are missing."""
        try:
            self._open()
        except VolumeNotConfigured as error:
            return str(error)
        return None

    def upload(self, file: StoreFile, stop: threading.Event) -> str:
        """Upload a file and return its key; another thread can set ``stop`` to cancel this."""
        try:
            return self._open().upload_by_digest(file.path, file.name, stop)
        except VolumeNotConfigured as error:
            raise FileNotStored(str(error), 413) from None
        except NoSpace as error:
            raise FileNotStored(str(error), 507) from None
        except VolumeError as error:
            raise FileNotStored(str(error), 502) from None

    def _open(self) -> "Volume":
        with self._lock:
            if self._volume is None:
                self._volume = open_volume()
            return self._volume


class Answer:
    """The response to a request: first its head, then the parts of its body."""

    def __init__(self, endpoint: "Endpoint", exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._steps = exchange.steps()
        self.head = ResponseHead(0)

    def wait_for_head(self) -> None:
        step = self._endpoint.run_steps(self._steps)
        assert isinstance(step, ResponseHead)
        self.head = step

    def body_parts(self) -> Iterator[bytes]:
        while isinstance(part := self._endpoint.run_steps(self._steps), bytes):
            yield part

    def abandon(self) -> None:
        """Stop receiving the response, and cancel the job if it is still running."""
        self._steps.close()
        job = self._exchange.job
        if job.id is not None and not job.is_over:
            job.is_over = True
            with suppress(PlatformUnreachable):
                self._endpoint.run_steps(cancel_job(job.id))


class Endpoint:
    """A deployed endpoint with a synchronous interface, which threads may share.

    The defaults of ``api_key`` and ``base_url`` are those of ``account``. ``volume``, the
    environment's by default, is for files that are too large for a job.

    Raises:
        NoApiKey: If no API key is configured.
    """

    def __init__(
        self,
        id: str,
        api_key: str | None = None,
        base_url: str | None = None,
        volume: "Volume | None" = None,
    ) -> None:
        self.id = id
        self.lazy_volume = LazyVolume(volume)
        self._rate_limiter = RateLimiter()
        self._requests = RequestBuilder(id, api_key, base_url)
        self._http = httpx2.HTTPTransport(limits=CONNECTION_LIMITS, proxy=self._requests.proxy)

    def answer_request(self, request: Request, timeout_s: float | None = None) -> Answer:
        """Send a request and return its response once the head has arrived; see ``Exchange``.

        Raises:
            ReadTimedOut: If no output has arrived within the timeout. The job is cancelled.
        """
        answer = Answer(self, Exchange(request, self.id, timeout_s))
        try:
            answer.wait_for_head()
        except BaseException:
            answer.abandon()
            raise
        return answer

    def run_steps(self, steps: Steps[Any]) -> Step | None:
        """Perform requests, uploads and pauses until the next part of a response; return that part.

        A part is the head or bytes of the body. After the last part, return None.
        """
        with suppress(StopIteration):
            step = steps.send(None)
            while True:
                if isinstance(step, PlatformRequest | StoreFile):
                    try:
                        result = (
                            self._send_request(step)
                            if isinstance(step, PlatformRequest)
                            else self.lazy_volume.upload(step, threading.Event())
                        )
                    except (PlatformUnreachable, FileNotStored) as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(result)
                elif isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    return step
        return None

    def close(self) -> None:
        self._http.close()

    def _send_request(self, request: PlatformRequest) -> PlatformReply:
        if delay_s := self._rate_limiter.reserve_send_time(request.operation):
            time.sleep(delay_s)
        try:
            response = self._http.handle_request(self._requests.build(request))
            response.read()
        except httpx2.TransportError as error:
            raise to_platform_unreachable(error) from None
        return PlatformReply(response.status_code, response.content, dict(response.headers))


class AsyncAnswer:
    """The response to a request, for asyncio."""

    def __init__(self, endpoint: "AsyncEndpoint", exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._steps = exchange.steps()
        self._replies = ReplyReader(endpoint.large_replies)
        self.head = ResponseHead(0)

    async def wait_for_head(self) -> None:
        step = await self._endpoint.run_steps(self._steps, self._replies)
        assert isinstance(step, ResponseHead)
        self.head = step
        self._replies.may_refuse = False

    async def body_parts(self) -> AsyncIterator[bytes]:
        while isinstance(part := await self._endpoint.run_steps(self._steps, self._replies), bytes):
            yield part
            # While the next part is fetched, this one is not in memory.
            del part

    def abandon(self) -> None:
        """Cancel the job in the background if it is still running."""
        self._replies.close()
        self._endpoint.answers.discard(self)
        job = self._exchange.job
        if job.id is not None and not job.is_over:
            job.is_over = True
            self._endpoint.cancel_job_soon(job.id)


class AsyncEndpoint:
    """A deployed endpoint for callers on one event loop, with the arguments of ``Endpoint``."""

    def __init__(
        self,
        id: str,
        api_key: str | None = None,
        base_url: str | None = None,
        volume: "Volume | None" = None,
    ) -> None:
        self.id = id
        self.lazy_volume = LazyVolume(volume)
        self._rate_limiter = RateLimiter()
        self._requests = RequestBuilder(id, api_key, base_url)
        self._http = httpx2.AsyncHTTPTransport(limits=CONNECTION_LIMITS, proxy=self._requests.proxy)
        # Limits the memory of all answers; None for no limit.
        self.large_replies: LargeReplies | None = None
        # Answers whose jobs may have to be cancelled.
        self.answers = WeakSet[AsyncAnswer]()
        self._background_tasks: set[asyncio.Task[None]] = set()
        # Ids of the jobs that still have to be cancelled.
        self._jobs_to_cancel: set[str] = set()

    async def answer_request(self, request: Request, timeout_s: float | None = None) -> AsyncAnswer:
        """Answer as ``Endpoint.answer_request`` does; cancelling this call cancels the job."""
        answer = AsyncAnswer(self, Exchange(request, self.id, timeout_s))
        self.answers.add(answer)
        try:
            await answer.wait_for_head()
        except BaseException:
            answer.abandon()
            raise
        return answer

    async def run_steps(self, steps: Steps[Any], replies: ReplyReader | None = None) -> Step | None:
        """Perform steps as ``Endpoint.run_steps`` does; ``replies`` reads those of an answer."""
        replies = replies or ReplyReader()
        with suppress(StopIteration):
            step = steps.send(None)
            while True:
                if isinstance(step, PlatformRequest | StoreFile):
                    try:
                        result = await self._perform_step(step, replies)
                    except (PlatformUnreachable, FileNotStored, Refusal) as error:
                        step = steps.throw(error)
                    else:
                        step = steps.send(result)
                        # While the next reply is read, this one is not in memory.
                        del result
                elif isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                else:
                    return step
        return None

    def cancel_job_soon(self, job_id: str) -> None:
        self._jobs_to_cancel.add(job_id)
        self._run_in_background(self._cancel_job(job_id))

    async def wait_for_cancellations(self) -> None:
        if self._background_tasks:
            # asyncio.gather would cancel these tasks together with the task that waits for them.
            await asyncio.wait(self._background_tasks)
        # An event loop that is closing has stopped the background tasks: cancel their jobs here.
        for job_id in tuple(self._jobs_to_cancel):
            await self._cancel_job(job_id)

    async def aclose(self) -> None:
        """Cancel the jobs of all remaining answers, then close the connections."""
        for answer in tuple(self.answers):
            answer.abandon()
        await self.wait_for_cancellations()
        await self._http.aclose()

    async def _perform_step(
        self, step: PlatformRequest | StoreFile, replies: ReplyReader
    ) -> PlatformReply | str:
        if isinstance(step, PlatformRequest):
            # The caller has received everything in the last reply.
            replies.forget()
            return await self._send_request(step, replies)
        stop_event = threading.Event()
        try:
            return await asyncio.to_thread(self.lazy_volume.upload, step, stop_event)
        finally:
            # Without this event, the upload's thread would continue after the caller has hung up.
            stop_event.set()

    async def _send_request(self, request: PlatformRequest, replies: ReplyReader) -> PlatformReply:
        if delay_s := self._rate_limiter.reserve_send_time(request.operation):
            await asyncio.sleep(delay_s)
        if not request.starts_job:
            return await self._send_request_now(request, replies)
        # If the caller hangs up now, only the response of this request contains the job's id.
        send_task = asyncio.create_task(self._send_request_now(request, replies))
        try:
            return await asyncio.shield(send_task)
        except asyncio.CancelledError:
            self._run_in_background(self._cancel_new_job(send_task))
            raise

    async def _send_request_now(
        self, request: PlatformRequest, replies: ReplyReader
    ) -> PlatformReply:
        try:
            response = await self._http.handle_async_request(self._requests.build(request))
            return await replies.read(response)
        except httpx2.TransportError as error:
            raise to_platform_unreachable(error) from None

    async def _cancel_new_job(self, send_task: asyncio.Task[PlatformReply]) -> None:
        with suppress(PlatformUnreachable, Refusal, ValueError):
            report = json.loads((await send_task).content)
            if report.get("status") not in ENDED_STATUSES and "id" in report:
                self._jobs_to_cancel.add(report["id"])
                await self._cancel_job(report["id"])

    async def _cancel_job(self, job_id: str) -> None:
        with suppress(PlatformUnreachable):
            await self.run_steps(cancel_job(job_id))
        self._jobs_to_cancel.discard(job_id)

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
