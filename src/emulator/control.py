"""The developer's side, which the platform does not have: faults, signals, timings."""

import signal
from typing import Any, Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ConfigDict

from emulator.faults import Fault, Faults
from emulator.job_queue import Queue, Worker
from emulator.limits import CHUNK_BYTES
from emulator.wire import find_job, parse_object, read_body, validated


class SignalOrder(BaseModel):
    """The body of a request for a signal."""

    model_config = ConfigDict(extra="forbid")

    signal: Literal["SIGTERM", "SIGKILL", "SIGSTOP", "SIGCONT"]


class Control:
    """Lets a developer break things, and tells what happened."""

    def __init__(self, queue: Queue, faults: Faults) -> None:
        self._queue = queue
        self._faults = faults

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/control/faults", self.list_faults),
            web.post("/control/faults", _from_no_page(self.add_fault)),
            web.delete("/control/faults", _from_no_page(self.clear_faults)),
            web.get("/control/jobs", self.list_jobs),
            web.get("/control/jobs/{job}", self.show_job),
            web.get("/control/workers", self.list_workers),
            web.post("/control/workers/{worker}/signal", _from_no_page(self.signal_worker)),
        ]

    async def list_faults(self, request: web.Request) -> web.Response:
        faults = [fault.model_dump(exclude_defaults=True) for fault in self._faults.active()]
        return web.json_response({"faults": faults})

    async def add_fault(self, request: web.Request) -> web.Response:
        body = await read_body(request, CHUNK_BYTES)
        self._faults.add(validated(Fault, parse_object(body)))
        return await self.list_faults(request)

    async def clear_faults(self, request: web.Request) -> web.Response:
        self._faults.clear()
        return await self.list_faults(request)

    async def list_jobs(self, request: web.Request) -> web.Response:
        """Every job's timings, with the number of its chunks in their place."""
        jobs = [job.timings() for job in self._queue.jobs.values()]
        return web.json_response({"jobs": [{**job, "chunks": len(job["chunks"])} for job in jobs]})

    async def show_job(self, request: web.Request) -> web.Response:
        return web.json_response(find_job(self._queue, request).timings())

    async def list_workers(self, request: web.Request) -> web.Response:
        workers = [_describe(worker) for worker in self._queue.workers.values()]
        return web.json_response({"workers": workers})

    async def signal_worker(self, request: web.Request) -> web.Response:
        worker = self._queue.workers.get(request.match_info["worker"])
        if worker is None or worker.process is None:
            raise web.HTTPNotFound(text="no such worker is run by this endpoint")
        body = await read_body(request, CHUNK_BYTES)
        order = validated(SignalOrder, parse_object(body))
        worker.process.signal(signal.Signals[order.signal])
        return web.json_response(_describe(worker))


def _from_no_page(handler: Handler) -> Handler:
    """A handler that does nothing for web pages, any of which could reach it through a browser."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="not for web pages")
        return await handler(request)

    return answer


def _describe(worker: Worker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "ready": worker.ready,
        "unhealthy": worker.unhealthy,
        "pings": worker.pings,
        "starts": worker.starts,
        "pid": None if worker.process is None else worker.process.pid,
    }
