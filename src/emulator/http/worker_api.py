"""The routes for workers: job-take, job-stop, job-stream, job-done, ping."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from emulator.faults import Action, ActiveFault, Call, Faults
from emulator.http.app import FAULT
from emulator.http.wire import find_job, parse_object, read_body, read_number
from emulator.http.worker_port import is_closed, reset
from emulator.options import CHUNK_BYTES, RUNSYNC_BYTES, Options
from emulator.state.job import Condition, Job, Status
from emulator.state.job_queue import Queue
from emulator.state.worker import Worker

log = logging.getLogger("emulator")

# The SDK's wrapper around what the handler yielded: not counted in the limit of a chunk.
_WRAPPER_BYTES = len('{"output": }')
# How long a closed endpoint holds a poll: the SDK polls again at once.
_CLOSED_POLL_S = 0.1
_MAX_BATCH = 100_000  # jobs


class WorkerApi:
    """Hands jobs to workers, and receives their chunks and results."""

    def __init__(self, queue: Queue, faults: Faults, options: Options) -> None:
        self._queue = queue
        self._faults = faults
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/job-take/{worker}", self._faulty(Call.TAKE, self.take)),
            web.get("/job-take-batch/{worker}", self._faulty(Call.TAKE, self.take_batch)),
            web.get("/job-stop/{worker}", self._faulty(Call.STOP, self.stop)),
            web.post("/job-stream/{worker}/{job}", self._faulty(Call.STREAM, self.stream)),
            web.post("/job-done/{worker}/{job}", self._faulty(Call.DONE, self.done)),
            web.get("/ping/{worker}", self._unless_frozen(self.ping)),
        ]

    def _faulty(self, call: Call, handler: Handler) -> Handler:
        """Return a handler that first applies the faults that let a call have no effect."""

        async def answer(request: web.Request) -> web.StreamResponse:
            active = self._trigger(request, call, Action.STATUS, Action.RESET, Action.HANG)
            if active is None:
                try:
                    return await handler(request)
                except web.HTTPException as error:
                    # Logged here, since the SDK logs the status at most, and the job may even
                    # end as COMPLETED.
                    log.warning("a worker's %s was refused: %s", request.raw_path, error.text)
                    raise
            fault = active.fault
            if fault.do is Action.RESET:
                return _reset(request)
            await request.read()
            if fault.do is Action.HANG:
                await active.hold()
                return _reset(request)
            return web.json_response({"error": "a fault on demand"}, status=fault.status)

        return self._unless_frozen(answer)

    def _unless_frozen(self, handler: Handler) -> Handler:
        """Return a handler that resets the connections of workers that are frozen."""

        async def answer(request: web.Request) -> web.StreamResponse:
            worker = self._worker(request)
            if request.transport is not None:
                worker.connections.add(request.transport)
            if worker.frozen:
                request[FAULT] = "freeze"
                return _reset(request)
            return await handler(request)

        return answer

    async def take(self, request: web.Request) -> web.StreamResponse:
        jobs = await self._wait_for_jobs(request, limit=1)
        return await self._deliver_jobs(request, jobs, _as_taken(jobs[0]) if jobs else None)

    async def take_batch(self, request: web.Request) -> web.StreamResponse:
        limit = read_number(request, "batch_size", (1, _MAX_BATCH)) or 1
        jobs = await self._wait_for_jobs(request, limit)
        return await self._deliver_jobs(request, jobs, [_as_taken(job) for job in jobs])

    async def stop(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker(request)
        await self._poll(worker.changed, lambda: bool(worker.stops))
        stops, worker.stops = worker.stops, []
        if not stops:
            return web.Response(status=204)
        try:
            return await self._deliver(request, Call.STOP, {"jobsToStop": stops})
        except (asyncio.CancelledError, ConnectionError):
            worker.add_stops(stops)
            raise

    async def stream(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        body = await read_body(request, CHUNK_BYTES + _WRAPPER_BYTES)
        worker = self._worker(request)
        worker.chunks += 1
        worker.late_posts += job.ended
        worker.late_chunks += job.status in (Status.COMPLETED, Status.FAILED)
        chunk = parse_object(body)
        if "output" not in chunk:
            raise web.HTTPBadRequest(text="a stream post must carry `output`")
        if self._queue.accepts_posts(job, request.match_info["worker"]):
            self._queue.add_chunk(job, chunk["output"], len(body))
        return await self._acknowledge(request, Call.STREAM)

    async def done(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        accepted = self._queue.accepts_posts(job, request.match_info["worker"])
        try:
            result = parse_object(await read_body(request, RUNSYNC_BYTES))
        except web.HTTPBadRequest:
            # As on the platform: the worker gets the error, and the job ends without an output.
            if accepted:
                self._queue.complete(job, None)
            raise
        if result.get("status") != "IN_PROGRESS":
            worker = self._worker(request)
            worker.results += 1
            worker.late_posts += job.ended
        if accepted:
            self._store(job, result)
        return await self._acknowledge(request, Call.DONE)

    def _store(self, job: Job, result: dict[str, Any]) -> None:
        if result.get("status") == "IN_PROGRESS":  # the SDK's progress_update
            self._queue.report_progress(job, result.get("output"))
        elif error := result.get("error"):
            self._queue.fail(job, error if isinstance(error, str) else str(error))
        else:
            self._queue.complete(job, result.get("output"))

    async def ping(self, request: web.Request) -> web.StreamResponse:
        worker = self._worker(request)
        worker.pings += 1
        worker.unhealthy = worker.failed or request.query.get("status") == "unhealthy"
        return web.json_response({})

    def _worker(self, request: web.Request) -> Worker:
        return self._queue.worker(request.match_info["worker"])

    async def _wait_for_jobs(self, request: web.Request, limit: int) -> list[Job]:
        worker, queue = self._worker(request), self._queue
        worker.takes += 1
        # Of this project's worker: the platform has no such header.
        worker.failed = request.headers.get("X-Worker-Start") == "failed"
        if not worker.ready:
            worker.ready, worker.unhealthy = not worker.failed, worker.failed
            worker.changed.notify_all()
        await self._poll(queue.arrived, lambda: queue.has_waiting)
        return [] if queue.closed else queue.take(worker, limit)

    async def _poll(self, changed: Condition, found: Callable[[], bool]) -> None:
        """Hold a worker's request until something is found, or the time of a poll is over."""
        queue = self._queue
        if queue.closed:
            await asyncio.sleep(_CLOSED_POLL_S)
        else:
            await changed.wait_for(lambda: found() or queue.closed, self._options.take_poll_s)

    async def _deliver_jobs(
        self, request: web.Request, jobs: list[Job], body: Any
    ) -> web.StreamResponse:
        if not jobs:
            return web.Response(status=204)
        try:
            response = await self._deliver(request, Call.TAKE, body)
        except (asyncio.CancelledError, ConnectionError):
            self._queue.give_back(jobs)
            raise
        self._worker(request).jobs += len(jobs)
        if self._trigger(request, Call.TAKE, Action.DUPLICATE):
            self._queue.redeliver(jobs)
        return response

    async def _deliver(self, request: web.Request, call: Call, body: Any) -> web.StreamResponse:
        """Answer a poll, to the last byte.

        Raises:
            ConnectionError: the worker hung up, and got nothing.
            asyncio.CancelledError: likewise, during the answer.
        """
        await self._delay(request, call)
        if self._trigger(request, call, Action.LOSE):
            return _reset(request)
        response = web.Response(body=msgspec.json.encode(body), content_type="application/json")
        transport = request.transport
        if transport is None or is_closed(transport):
            raise ConnectionResetError("the worker hung up")
        # The end of the answer is waited for until nothing is left in the buffer.
        transport.set_write_buffer_limits(0)
        await response.prepare(request)
        await response.write_eof()
        return response

    async def _acknowledge(self, request: web.Request, call: Call) -> web.StreamResponse:
        """Answer a post. It has taken effect already: a delay is the worker's only."""
        await self._delay(request, call)
        if self._trigger(request, call, Action.LOSE):
            return _reset(request)
        return web.json_response({})

    async def _delay(self, request: web.Request, call: Call) -> None:
        if active := self._trigger(request, call, Action.DELAY):
            await asyncio.sleep(active.fault.delay_s)

    def _trigger(self, request: web.Request, call: Call, *actions: Action) -> ActiveFault | None:
        """Return the fault that the request triggers, if any, and note it for the request log."""
        active = self._faults.trigger(call, *actions)
        if active is not None:
            request[FAULT] = active.fault.do
        return active


def _as_taken(job: Job) -> dict[str, Any]:
    return {**job.payload, "id": job.id}


def _reset(request: web.Request) -> web.Response:
    """Reset the connection; the response is for aiohttp only and never sent."""
    reset(request.transport)
    return web.Response()
