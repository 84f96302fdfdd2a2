"""The OpenAI gateway: turns what an OpenAI client sends into a job, and the job back into HTTP."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

from aiohttp import web
from pydantic_core import from_json

from emulator.job_queue import Queue
from emulator.jobs import Chunk, Job, Status
from emulator.limits import RUNSYNC_BYTES
from emulator.options import FailedAs, Options
from emulator.wire import parse_object, read_body, refuse_when_closed

_CLIENT_CLOSED_REQUEST = 499
_GATEWAY_TIMEOUT = 504
_LAST_EVENT = b"data: [DONE]\n\n"
_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Gateway:
    """Serves /openai/…: the path and the body reach the worker, headers and query do not."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        # The method is not part of the job, so the worker could not tell a DELETE from a POST.
        return [
            web.get("/openai/{path:.+}", self.answer),
            web.post("/openai/{path:.+}", self.answer),
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request) if request.method == "POST" else None
        route = f"/{request.match_info['path']}"
        refuse_when_closed(self._queue)
        payload = {"input": {"openai_route": route, "openai_input": body}}
        job = self._queue.submit(payload, sync=True)
        try:
            if body is not None and body.get("stream") is True:
                return await self._stream(request, job)
            await job.wait_ended()
            return self._whole(job)
        except (asyncio.CancelledError, ConnectionError):
            if self._options.cancel_on_disconnect:
                self._queue.cancel(job)
            raise

    async def _read(self, request: web.Request) -> dict[str, Any]:
        # What the gateway's limit is, is not public; a job that waits for its answer is a sync one.
        body = await read_body(request, RUNSYNC_BYTES, self._options.oversize_status)
        return parse_object(body)

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        async with aclosing(job.follow()) as chunks:
            first = await anext(chunks, None)
            if first is None:
                return self._whole(job)
            response = web.StreamResponse(headers=_SSE_HEADERS)
            await response.prepare(request)
            events = _as_events(first)
            await response.write(events)
            # Clients hang up at this event: the job ends by itself, and is not given up for it.
            while not events.endswith(_LAST_EVENT) and (chunk := await anext(chunks, None)):
                events = _as_events(chunk)
                await response.write(events)
        if not events.endswith(_LAST_EVENT) and job.status is not Status.COMPLETED:
            await response.write(_as_event(_error_body(job)))
        await response.write_eof()
        return response

    def _whole(self, job: Job) -> web.Response:
        """The answer to a job that ended without streaming anything to this client."""
        if job.status is not Status.COMPLETED:
            body = _error_body(job)
            return web.json_response(body, status=self._error_status(body))
        outputs = [chunk.output for chunk in job.chunks]
        # Not a generator: the output came with the final post. Several yields: all of them.
        output = outputs[0] if len(outputs) == 1 else outputs or job.output
        if isinstance(output, str):
            return web.Response(body=_as_bytes(output), content_type="text/plain", charset="utf-8")
        return web.json_response(output)

    def _error_status(self, body: dict[str, Any]) -> int:
        if self._options.failed_as is FailedAs.OK:
            return 200
        code = body["error"].get("code")
        if (
            self._options.failed_as is FailedAs.ERROR_CODE
            and isinstance(code, int)
            and 400 <= code <= 599
        ):
            return code
        return 500


def _as_events(chunk: Chunk) -> bytes:
    # A string is SSE text already, whatever its framing; what the real gateway does with
    # anything else is not public: here it becomes one event.
    output = chunk.output
    return _as_bytes(output) if isinstance(output, str) else _as_event(output)


def _as_event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _as_bytes(text: str) -> bytes:
    # JSON can carry half of a surrogate pair, which no encoding can.
    return text.encode(errors="replace")


def _error_body(job: Job) -> dict[str, Any]:
    """The job's error, in OpenAI's shape: the worker's own words where it wrote them so."""
    if job.status is Status.CANCELLED:
        return _openai_error(f"job {job.id} was cancelled", "cancelled", _CLIENT_CLOSED_REQUEST)
    if job.status is Status.TIMED_OUT:
        return _openai_error(f"job {job.id}: {job.error}", "timed_out", _GATEWAY_TIMEOUT)
    text = job.error or "the job failed without an error"
    try:
        body = from_json(text)
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return body
    return _openai_error(text, "job_failed", 500)


def _openai_error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
