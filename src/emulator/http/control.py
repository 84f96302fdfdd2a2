"""The control routes, which only the emulator has: faults, outages, signals, timings."""

import asyncio
import json
import signal
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from emulator.faults import Fault, Faults
from emulator.http.wire import find_job, parse_object, read_body, validate, write_part
from emulator.http.worker_port import WorkerPort, freeze_worker
from emulator.job_queue import Process, Queue, Worker
from emulator.options import MAX_CHUNK_BYTES

# Number of jobs whose timings are sent at a time.
_JOBS_PER_PART = 100
# Attributes of ``Worker`` that responses contain.
_WORKER_FIELDS = (
    *("id", "ready", "unhealthy", "frozen", "pings", "takes", "jobs", "chunks", "results"),
    *("late_posts", "late_chunks", "starts"),
)


class SignalRequest(BaseModel):
    """The body of /control/workers/{worker}/signal."""

    model_config = ConfigDict(extra="forbid")

    signal: Literal["SIGTERM", "SIGKILL", "SIGSTOP", "SIGCONT"]


class SecondsRequest(BaseModel):
    """The body of /control/outage and /control/workers/{worker}/freeze."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    seconds: float = Field(gt=0)


class ControlApi:
    """Routes with which a developer causes faults and inspects jobs and workers."""

    def __init__(self, queue: Queue, faults: Faults, worker_port: WorkerPort) -> None:
        self._queue = queue
        self._worker_port = worker_port
        self._faults = faults

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/control/faults", self.list_faults),
            web.post("/control/faults", self.add_fault),
            web.delete("/control/faults", self.clear_faults),
            web.get("/control/jobs", self.list_job_timings),
            web.get("/control/jobs/{job}", self.show_job_timings),
            web.get("/control/workers", self.list_workers),
            web.post("/control/workers/{worker}/signal", self.signal_worker),
            web.post("/control/workers/{worker}/freeze", self.freeze_worker),
            web.post("/control/outage", self.begin_outage),
        ]

    async def list_faults(self, request: web.Request) -> web.Response:
        faults = [fault.model_dump(exclude_defaults=True) for fault in self._faults.list_active()]
        return web.json_response({"faults": faults})

    async def add_fault(self, request: web.Request) -> web.Response:
        body = await read_body(request, MAX_CHUNK_BYTES)
        self._faults.add(validate(Fault, parse_object(body)))
        return await self.list_faults(request)

    async def clear_faults(self, request: web.Request) -> web.Response:
        self._faults.clear()
        return await self.list_faults(request)

    async def list_job_timings(self, request: web.Request) -> web.StreamResponse:
        """Send the timings of all jobs, with the number of chunks instead of the chunks.

        They are sent in parts, since a list of many jobs would block all other requests.
        """
        response = web.StreamResponse()
        response.content_type, response.charset = "application/json", "utf-8"
        await response.prepare(request)
        await write_part(request, response, b'{"jobs": [')
        jobs = list(self._queue.jobs.values())
        for start in range(0, len(jobs), _JOBS_PER_PART):
            timings = (
                {**job.timings(), "chunks": len(job.chunks)}
                for job in jobs[start : start + _JOBS_PER_PART]
            )
            text = ", ".join(map(json.dumps, timings))
            await write_part(request, response, f"{', ' if start else ''}{text}".encode())
            await asyncio.sleep(0)
        await write_part(request, response, b"]}")
        await response.write_eof()
        return response

    async def show_job_timings(self, request: web.Request) -> web.Response:
        return web.json_response(find_job(self._queue, request).timings())

    async def list_workers(self, request: web.Request) -> web.Response:
        workers = [_describe_worker(worker) for worker in self._queue.workers.values()]
        return web.json_response({"workers": workers})

    async def signal_worker(self, request: web.Request) -> web.Response:
        worker, process = self._find_worker_and_process(request)
        body = await read_body(request, MAX_CHUNK_BYTES)
        name = validate(SignalRequest, parse_object(body)).signal
        process.send_signal(signal.Signals[name])
        return web.json_response(_describe_worker(worker))

    async def freeze_worker(self, request: web.Request) -> web.Response:
        worker, _ = self._find_worker_and_process(request)
        freeze_worker(worker, await _read_seconds(request))
        return web.json_response(_describe_worker(worker))

    async def begin_outage(self, request: web.Request) -> web.Response:
        seconds = await _read_seconds(request)
        if self._worker_port.is_refusing_connections:
            raise web.HTTPConflict(text="workers are already refused")
        await self._worker_port.begin_outage(seconds)
        return web.json_response({"seconds": seconds})

    def _find_worker_and_process(self, request: web.Request) -> tuple[Worker, Process]:
        worker = self._queue.workers.get(request.match_info["worker"])
        if worker is None or worker.process is None:
            raise web.HTTPNotFound(text="this endpoint runs no such worker")
        return worker, worker.process


async def _read_seconds(request: web.Request) -> float:
    body = await read_body(request, MAX_CHUNK_BYTES)
    return validate(SecondsRequest, parse_object(body)).seconds


def _describe_worker(worker: Worker) -> dict[str, Any]:
    pid = None if worker.process is None else worker.process.pid
    return {**{name: getattr(worker, name) for name in _WORKER_FIELDS}, "pid": pid}
