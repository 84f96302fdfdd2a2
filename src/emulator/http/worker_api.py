"""The routes for workers: job-take, job-take-batch, job-stop, job-stream, job-done, ping."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic_core import from_json

from emulator.faults import Action, ActiveFault, Call, Faults
from emulator.http.app import FAULT_KEY
from emulator.http.wire import (
    find_job,
    parse_object,
    parse_raw_values,
    read_body,
    read_query_number,
)
from emulator.http.worker_port import is_closed_by_peer, reset_connection
from emulator.job import Condition, Job, Status
from emulator.job_queue import Queue, Worker
from emulator.options import MAX_CHUNK_BYTES, MAX_RUNSYNC_BYTES, Options

log = logging.getLogger("emulator")

# Size of the SDK's wrapper around a yield of the handler; the limit of a chunk excludes it.
_WRAPPER_BYTES = len('{"output": }')
# Seconds that a closed endpoint delays a poll. Not 0, because the SDK polls again immediately.
_CLOSED_POLL_S = 0.1
_MAX_BATCH = 100_000  # maximum number of jobs in a response


class WorkerApi:
    """Hands jobs to workers, and receives their chunks and results."""

    def __init__(self, queue: Queue, faults: Faults, options: Options) -> None:
        self._queue = queue
        self._faults = faults
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/job-take/{worker}", self._with_faults(Call.TAKE, self.take)),
            web.get("/job-take-batch/{worker}", self._with_faults(Call.TAKE, self.take_batch)),
            web.get("/job-stop/{worker}", self._with_faults(Call.STOP, self.send_stops)),
            web.post("/job-stream/{worker}/{job}", self._with_faults(Call.STREAM, self.stream)),
            web.post("/job-done/{worker}/{job}", self._with_faults(Call.DONE, self.receive_result)),
            web.get("/ping/{worker}", self._reset_if_frozen(self.ping)),
        ]

    def _with_faults(self, call: Call, handler: Handler) -> Handler:
        """Return a handler that applies faults, resets frozen workers' calls and logs refusals."""

        async def apply_faults(request: web.Request) -> web.StreamResponse:
            active_fault = self._pick_fault(request, call, Action.STATUS, Action.RESET, Action.HANG)
            if active_fault is None:
                try:
                    return await handler(request)
                except web.HTTPException as error:
                    # Logged here, since the SDK logs at most the status, and the job may even end
                    # as COMPLETED.
                    log.warning("a worker's %s was refused: %s", request.raw_path, error.text)
                    raise
            fault = active_fault.fault
            if fault.do is Action.RESET:
                return _reset_connection(request)
            await request.read()
            if fault.do is Action.HANG:
                await active_fault.wait_until_over()
                return _reset_connection(request)
            return web.json_response({"error": "a fault on demand"}, status=fault.status)

        return self._reset_if_frozen(apply_faults)

    def _reset_if_frozen(self, handler: Handler) -> Handler:
        """Return a handler that stores workers' connections, and resets those of frozen workers."""

        async def reset_if_frozen(request: web.Request) -> web.StreamResponse:
            worker = self._get_worker(request)
            if request.transport is not None:
                worker.connections.add(request.transport)
            if worker.frozen:
                request[FAULT_KEY] = "freeze"
                return _reset_connection(request)
            return await handler(request)

        return reset_if_frozen

    async def take(self, request: web.Request) -> web.StreamResponse:
        jobs = await self._wait_for_jobs(request, limit=1)
        return await self._deliver_jobs(request, jobs, _to_message(jobs[0]) if jobs else None)

    async def take_batch(self, request: web.Request) -> web.StreamResponse:
        limit = read_query_number(request, "batch_size", (1, _MAX_BATCH)) or 1
        jobs = await self._wait_for_jobs(request, limit)
        return await self._deliver_jobs(request, jobs, [_to_message(job) for job in jobs])

    async def send_stops(self, request: web.Request) -> web.StreamResponse:
        worker = self._get_worker(request)
        await self._wait_for_work(worker.changed, lambda: bool(worker.pending_stops))
        stops, worker.pending_stops = worker.pending_stops, []
        if not stops:
            return web.Response(status=204)
        try:
            return await self._answer_poll(request, Call.STOP, {"jobsToStop": stops})
        except (asyncio.CancelledError, ConnectionError):
            worker.add_pending_stops(stops)
            raise

    async def stream(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        body = await read_body(request, MAX_CHUNK_BYTES + _WRAPPER_BYTES)
        worker = self._get_worker(request)
        worker.chunks += 1
        worker.late_posts += job.has_ended
        worker.late_chunks += job.status in (Status.COMPLETED, Status.FAILED)
        chunk = parse_object(body)
        if "output" not in chunk:
            raise web.HTTPBadRequest(text="a stream post must carry `output`")
        if self._queue.accepts_posts(job, request.match_info["worker"]):
            self._queue.add_chunk(job, chunk["output"], len(body))
        return await self._acknowledge(request, Call.STREAM)

    async def receive_result(self, request: web.Request) -> web.StreamResponse:
        job = find_job(self._queue, request)
        is_accepted = self._queue.accepts_posts(job, request.match_info["worker"])
        try:
            # The output stays unparsed: parsing a large one would block all other requests.
            raw = parse_raw_values(await read_body(request, MAX_RUNSYNC_BYTES))
        except web.HTTPBadRequest:
            # As on the platform: the worker receives the error, the job completes with no output.
            if is_accepted:
                self._queue.complete(job, None)
            raise
        keys = raw.keys() & {"status", "error"}
        result = {key: from_json(bytes(raw[key])) for key in keys}
        is_progress = result.get("status") == "IN_PROGRESS"  # the SDK's progress_update
        if not is_progress:
            worker = self._get_worker(request)
            worker.results += 1
            worker.late_posts += job.has_ended
        if is_accepted:
            output = raw.get("output")
            if output is not None and bytes(output) == b"null":
                output = None
            if is_progress:
                progress = None if output is None else from_json(bytes(output))
                self._queue.store_progress(job, progress)
            elif error := result.get("error"):
                self._queue.fail(job, str(error))
            else:
                self._queue.complete(job, output)
        return await self._acknowledge(request, Call.DONE)

    async def ping(self, request: web.Request) -> web.StreamResponse:
        worker = self._get_worker(request)
        worker.pings += 1
        worker.unhealthy = worker.has_failed_start or request.query.get("status") == "unhealthy"
        return web.json_response({})

    def _get_worker(self, request: web.Request) -> Worker:
        return self._queue.get_worker(request.match_info["worker"])

    async def _wait_for_jobs(self, request: web.Request, limit: int) -> list[Job]:
        worker, queue = self._get_worker(request), self._queue
        worker.takes += 1
        # Sent by this project's worker; the platform has no such header.
        worker.has_failed_start = request.headers.get("X-Worker-Start") == "failed"
        if not worker.ready:
            worker.ready, worker.unhealthy = not worker.has_failed_start, worker.has_failed_start
            worker.changed.notify_all()
        await self._wait_for_work(queue.changed, lambda: queue.has_available_jobs)
        return [] if queue.is_closed else queue.take(worker, limit)

    async def _wait_for_work(self, changed: Condition, has_work: Callable[[], bool]) -> None:
        """Wait up to a long poll's timeout for ``has_work()``; briefly if the queue is closed."""
        queue = self._queue
        if queue.is_closed:
            await asyncio.sleep(_CLOSED_POLL_S)
        else:
            await changed.wait_for(lambda: has_work() or queue.is_closed, self._options.long_poll_s)

    async def _deliver_jobs(
        self, request: web.Request, jobs: list[Job], body: Any
    ) -> web.StreamResponse:
        if not jobs:
            return web.Response(status=204)
        try:
            response = await self._answer_poll(request, Call.TAKE, body)
        except (asyncio.CancelledError, ConnectionError):
            self._queue.requeue(jobs)
            raise
        self._get_worker(request).jobs += len(jobs)
        if self._pick_fault(request, Call.TAKE, Action.DUPLICATE):
            self._queue.redeliver(jobs)
        return response

    async def _answer_poll(self, request: web.Request, call: Call, body: Any) -> web.StreamResponse:
        """Answer a poll to its last byte; ``ConnectionError`` if the worker hung up before."""
        await self._apply_delay_fault(request, call)
        if self._pick_fault(request, call, Action.LOSE):
            return _reset_connection(request)
        response = web.Response(body=msgspec.json.encode(body), content_type="application/json")
        transport = request.transport
        if transport is None or is_closed_by_peer(transport):
            raise ConnectionResetError("the worker hung up")
        # With a limit of 0, ``write_eof`` waits until the whole response has left the write buffer.
        transport.set_write_buffer_limits(0)
        await response.prepare(request)
        await response.write_eof()
        return response

    async def _acknowledge(self, request: web.Request, call: Call) -> web.StreamResponse:
        """Answer a post that has already taken effect; a fault may delay or lose the answer."""
        await self._apply_delay_fault(request, call)
        if self._pick_fault(request, call, Action.LOSE):
            return _reset_connection(request)
        return web.json_response({})

    async def _apply_delay_fault(self, request: web.Request, call: Call) -> None:
        if active_fault := self._pick_fault(request, call, Action.DELAY):
            await asyncio.sleep(active_fault.fault.delay_s)

    def _pick_fault(self, request: web.Request, call: Call, *actions: Action) -> ActiveFault | None:
        """Return the fault that the request triggers, if any, and store it for the request log."""
        active_fault = self._faults.trigger_first(call, *actions)
        if active_fault is not None:
            request[FAULT_KEY] = active_fault.fault.do
        return active_fault


def _to_message(job: Job) -> dict[str, Any]:
    return {**job.payload, "id": job.id}


def _reset_connection(request: web.Request) -> web.Response:
    """Reset the connection; aiohttp requires the returned response but never sends it."""
    reset_connection(request.transport)
    return web.Response()
