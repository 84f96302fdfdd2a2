"""The side callers talk to: run, runsync, stream, status, cancel, health."""

from collections import Counter
from typing import Any

from aiohttp import web

from emulator.jobs import Queue, Status
from emulator.options import Options
from emulator.wire import find_job, read_number, read_object


class PublicApi:
    """Takes jobs from callers and reports on them."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/run", self.run),
            web.post("/runsync", self.runsync),
            web.get("/stream/{job}", self.stream),
            web.get("/status/{job}", self.status),
            web.post("/cancel/{job}", self.cancel),
            web.get("/health", self.health),
        ]

    async def run(self, request: web.Request) -> web.Response:
        job = self._queue.submit(await _read_payload(request))
        return web.json_response(job.report())

    async def runsync(self, request: web.Request) -> web.Response:
        wait_ms = read_number(request, "wait", round(self._options.runsync_wait_s * 1000))
        job = self._queue.submit(await _read_payload(request), id_prefix="sync-")
        await job.wait_ended(wait_ms / 1000)
        return web.json_response(job.report())

    async def stream(self, request: web.Request) -> web.Response:
        job = find_job(self._queue, request)
        await job.changed.wait_for(lambda: job.has_unread or job.ended, self._options.stream_poll_s)
        chunks = [{"output": chunk.output} for chunk in job.read_chunks()]
        body: dict[str, Any] = {"status": job.status, "stream": chunks}
        if job.error is not None:
            body["error"] = job.error
        return web.json_response(body)

    async def status(self, request: web.Request) -> web.Response:
        return web.json_response(find_job(self._queue, request).report())

    async def cancel(self, request: web.Request) -> web.Response:
        job = find_job(self._queue, request)
        self._queue.cancel(job)
        return web.json_response(job.report())

    async def health(self, request: web.Request) -> web.Response:
        jobs = Counter(job.status for job in self._queue.jobs.values())
        running = {
            job.worker for job in self._queue.jobs.values() if job.status is Status.IN_PROGRESS
        }
        body = {
            "jobs": {
                "completed": jobs[Status.COMPLETED],
                "failed": jobs[Status.FAILED],
                "inProgress": jobs[Status.IN_PROGRESS],
                "inQueue": jobs[Status.IN_QUEUE],
            },
            "workers": {
                "idle": len(self._queue.workers) - len(running),
                "running": len(running),
            },
        }
        return web.json_response(body)


async def _read_payload(request: web.Request) -> dict[str, Any]:
    payload = await read_object(request)
    if "input" not in payload:
        raise web.HTTPBadRequest(text="the body must have an `input`")
    return payload
