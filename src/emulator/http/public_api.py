"""The routes for callers, such as run, stream and status, and the callers' webhooks."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp_retry import ListRetry, RetryClient
from pydantic import BaseModel, HttpUrl
from pydantic_core import from_json

from emulator.http.app import GatewayTimeout
from emulator.http.wire import (
    find_job,
    parse_raw_values,
    read_body,
    read_query_number,
    refuse_when_closed,
    send_json,
    validate,
)
from emulator.job import Job, Policy, Status
from emulator.job_queue import Queue
from emulator.options import (
    MAX_RUN_BYTES,
    MAX_RUNSYNC_BYTES,
    TTL_BOUNDS_MS,
    WAIT_BOUNDS_MS,
    WEBHOOK_ATTEMPTS,
    Options,
)

log = logging.getLogger("emulator")

_JSON = {"Content-Type": "application/json"}


class JobRequest(BaseModel):
    """The validated keys of a job request; all others, and the input, reach the worker as is."""

    webhook: HttpUrl | None = None
    policy: Policy | None = None


class PublicApi:
    """Accepts jobs from callers and reports on them."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/run", self.run),
            web.post("/runsync", self.runsync),
            web.get("/stream/{job}", self.stream),
            web.get("/status/{job}", self.status),
            web.get("/status-sync/{job}", self.status_sync),
            web.post("/cancel/{job}", self.cancel),
            web.post("/retry/{job}", self.retry),
            web.post("/purge-queue", self.purge_queue),
            web.get("/health", self.health),
        ]

    async def run(self, request: web.Request) -> web.StreamResponse:
        job = await self._submit(request, MAX_RUN_BYTES)
        return await send_json(request, job.status_json())

    async def runsync(self, request: web.Request) -> web.StreamResponse:
        wait_s = self._read_wait_s(request)
        job = await self._submit(request, MAX_RUNSYNC_BYTES, sync=True)
        await self._wait_for(job, lambda: job.has_ended, wait_s)
        return await send_json(request, job.status_json())

    async def stream(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        await self._wait_for(
            job, lambda: job.has_unread_chunks or job.has_ended, self._options.stream_poll_s
        )
        chunks = [{"output": chunk.output} for chunk in job.take_unread_chunks()]
        body: dict[str, Any] = {"status": job.status, "stream": chunks}
        if job.error is not None:
            body["error"] = job.error
        return await send_json(request, [json.dumps(body).encode()])

    async def status(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        ttl_ms = read_query_number(request, "ttl", (0, TTL_BOUNDS_MS[1]))
        if ttl_ms is not None:
            self._queue.set_ttl(job, ttl_ms / 1000)
        return await send_json(request, job.status_json())

    async def status_sync(self, request: web.Request) -> web.StreamResponse:
        # RunPod documents only this route's rate limit, but its JavaScript client calls the route.
        job = find_job(self._queue, request)
        await self._wait_for(job, lambda: job.has_ended, self._read_wait_s(request))
        return await send_json(request, job.status_json())

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        self._queue.cancel(job)
        return await send_json(request, job.status_json())

    async def retry(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        if job.status not in (Status.FAILED, Status.TIMED_OUT):
            raise web.HTTPBadRequest(
                text=f"only a job that is FAILED or TIMED_OUT can be retried, not {job.status}"
            )
        refuse_when_closed(self._queue)
        self._queue.retry(job)
        return await send_json(request, job.status_json())

    async def purge_queue(self, request: web.Request) -> web.Response:
        return web.json_response({"removed": self._queue.purge(), "status": "completed"})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response(self._queue.health())

    async def _wait_for(self, job: Job, predicate: Callable[[], bool], wait_s: float) -> None:
        """Wait up to ``wait_s``; raise ``GatewayTimeout`` if the gateway's is over before."""
        timeout_s = self._options.gateway_timeout_s
        is_true = await job.changed.wait_for(predicate, min(wait_s, timeout_s))
        if not is_true and timeout_s < wait_s:
            raise GatewayTimeout

    def _read_wait_s(self, request: web.Request) -> float:
        wait_ms = read_query_number(request, "wait", WAIT_BOUNDS_MS)
        return self._options.runsync_wait_s if wait_ms is None else wait_ms / 1000

    async def _submit(self, request: web.Request, max_bytes: int, sync: bool = False) -> Job:
        body = await read_body(request, max_bytes, self._options.oversize_status)
        # The input stays unparsed: parsing a large one would block all other requests.
        parts = parse_raw_values(body)
        if "input" not in parts:
            raise web.HTTPBadRequest(text="the body must have an `input`")
        keys = parts.keys() & JobRequest.model_fields.keys()
        job_request = validate(JobRequest, {key: from_json(bytes(parts[key])) for key in keys})
        refuse_when_closed(self._queue)
        webhook = None if job_request.webhook is None else str(job_request.webhook)
        return self._queue.submit(parts, job_request.policy, webhook, sync=sync)


class Webhooks:
    """Posts ended jobs to webhooks in the background, ``WEBHOOK_ATTEMPTS`` times or until a 200."""

    def __init__(self, retry_delay_s: float) -> None:
        self._retry = ListRetry(
            [retry_delay_s] * WEBHOOK_ATTEMPTS,
            exceptions={aiohttp.ClientError, TimeoutError},
            evaluate_response_callback=_is_acknowledged,
        )
        self._posts: set[asyncio.Task[None]] = set()
        self._closed = False

    def notify(self, job: Job) -> None:
        if job.webhook is not None and not self._closed:
            post = asyncio.create_task(self._post(job, job.webhook))
            self._posts.add(post)
            post.add_done_callback(self._posts.discard)

    async def close(self) -> None:
        """Cancel the posts in progress, and ignore later calls of ``notify``."""
        self._closed = True
        for post in self._posts:
            post.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)

    async def _post(self, job: Job, url: str) -> None:
        body = b"".join(job.status_json())
        try:
            # One session per post: webhooks are few, and each may go to another host.
            async with (
                RetryClient(retry_options=self._retry) as client,
                client.post(url, data=body, headers=_JSON, allow_redirects=False) as response,
            ):
                status = str(response.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            status = str(error) or type(error).__name__
        if status != "200":
            log.warning("the webhook of job %s was not acknowledged: %s", job.id, status)


async def _is_acknowledged(response: aiohttp.ClientResponse) -> bool:
    return response.status == 200
