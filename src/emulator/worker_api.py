"""The side the worker talks to: job-take, job-stop, job-stream, job-done, ping."""

import asyncio
from typing import Any

from aiohttp import web

from emulator.jobs import Job, Queue, Worker
from emulator.options import Options
from emulator.wire import find_job, read_number, read_object


class WorkerApi:
    """Hands jobs to workers and takes what they post."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/job-take/{worker}", self.take),
            web.get("/job-take-batch/{worker}", self.take_batch),
            web.get("/job-stop/{worker}", self.stop),
            web.post("/job-stream/{worker}/{job}", self.stream),
            web.post("/job-done/{worker}/{job}", self.done),
            web.get("/ping/{worker}", self.ping),
        ]

    async def take(self, request: web.Request) -> web.StreamResponse:
        jobs = await self._wait_for_jobs(request, limit=1)
        return await self._deliver_jobs(request, jobs, _as_taken(jobs[0]) if jobs else None)

    async def take_batch(self, request: web.Request) -> web.StreamResponse:
        jobs = await self._wait_for_jobs(request, limit=read_number(request, "batch_size", 1))
        return await self._deliver_jobs(request, jobs, [_as_taken(job) for job in jobs])

    async def stop(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker(request)
        await worker.changed.wait_for(lambda: bool(worker.stops), self._options.take_poll_s)
        stops = worker.take_stops()
        if not stops:
            return web.Response(status=204)
        try:
            return await _deliver(request, {"jobsToStop": stops})
        except (asyncio.CancelledError, ConnectionError):
            worker.add_stops(stops)
            raise

    async def stream(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        body = await read_object(request)
        if "output" not in body:
            raise web.HTTPBadRequest(text="a stream post must carry `output`")
        self._queue.add_chunk(job, body["output"])
        return await self._acknowledge()

    async def done(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        body = await read_object(request)
        if error := body.get("error"):
            self._queue.fail(job, error if isinstance(error, str) else str(error))
        else:
            self._queue.complete(job, body.get("output"))
        return await self._acknowledge()

    async def ping(self, request: web.Request) -> web.StreamResponse:
        self._worker(request).pings += 1
        return web.json_response({})

    def _worker(self, request: web.Request) -> Worker:
        return self._queue.worker(request.match_info["worker"])

    async def _wait_for_jobs(self, request: web.Request, limit: int) -> list[Job]:
        worker = self._worker(request)
        queue = self._queue
        await queue.arrived.wait_for(lambda: queue.has_waiting, self._options.take_poll_s)
        return queue.take(worker, limit)

    async def _deliver_jobs(
        self, request: web.Request, jobs: list[Job], body: Any
    ) -> web.StreamResponse:
        if not jobs:
            return web.Response(status=204)
        try:
            return await _deliver(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self._queue.give_back(jobs)
            raise

    async def _acknowledge(self) -> web.Response:
        # What was posted counts from its arrival; only the worker waits.
        if self._options.post_delay_s:
            await asyncio.sleep(self._options.post_delay_s)
        return web.json_response({})


def _as_taken(job: Job) -> dict[str, Any]:
    return {**job.payload, "id": job.id}


async def _deliver(request: web.Request, body: Any) -> web.Response:
    """Write the answer here and now, so that a closed connection shows while it can be undone."""
    response = web.json_response(body)
    await response.prepare(request)
    await response.write_eof()
    # A worker that is gone already answers with a reset: two turns of the event loop see it.
    for _ in range(2):
        await asyncio.sleep(0)
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the worker hung up")
    return response
