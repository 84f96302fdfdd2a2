"""The OpenAI gateway: turns a request to OpenAI's API into a job, and its outputs into HTTP."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web
from pydantic_core import from_json

from emulator.http.wire import parse_parts, read_body, refuse_when_closed
from emulator.limits import RUNSYNC_BYTES
from emulator.options import FailedAs, Options
from emulator.state.job import Chunk, Job, Status
from emulator.state.job_queue import Queue

_CLIENT_CLOSED_REQUEST = 499
_GATEWAY_TIMEOUT = 504
_LAST_EVENT = b"data: [DONE]\n\n"
_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Gateway:
    """Serves /openai/…. Path and body reach the worker; headers and query do not."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    def routes(self) -> list[web.RouteDef]:
        # No DELETE: a job does not hold the method, so the worker would take it for a POST.
        return [
            web.get("/openai/{path:.+}", self.answer),
            web.post("/openai/{path:.+}", self.answer),
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request) if request.method == "POST" else None
        route = f"/{request.match_info['path']}"
        refuse_when_closed(self._queue)
        given = {"openai_route": route, "openai_input": body}
        payload = {"input": msgspec.Raw(msgspec.json.encode(given))}
        job = self._queue.submit(payload, sync=True)
        try:
            if body is not None and bytes(body.get("stream", b"")) == b"true":
                return await self._stream(request, job)
            await job.wait_ended()
            return self._whole(job)
        except (asyncio.CancelledError, ConnectionError):
            if self._options.cancel_on_disconnect:
                self._queue.cancel(job)
            raise

    async def _read(self, request: web.Request) -> dict[str, msgspec.Raw]:
        # The gateway's real limit is not public; its caller waits, as that of /runsync.
        body = await read_body(request, RUNSYNC_BYTES, self._options.oversize_status)
        return parse_parts(body)

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        async with aclosing(job.follow()) as chunks:
            first = await anext(chunks, None)
            if first is None:
                return self._whole(job)
            response = web.StreamResponse(headers=_SSE_HEADERS)
            await response.prepare(request)
            events = _as_events(first)
            await response.write(events)
            # Clients hang up after [DONE]. Reading on would notice that, and cancel the job.
            while not events.endswith(_LAST_EVENT) and (chunk := await anext(chunks, None)):
                events = _as_events(chunk)
                await response.write(events)
        if not events.endswith(_LAST_EVENT) and job.status is not Status.COMPLETED:
            await response.write(_as_event(_error_body(job)))
        await response.write_eof()
        return response

    def _whole(self, job: Job) -> web.Response:
        """Return the answer for a job of which nothing was streamed to the client."""
        if job.status is not Status.COMPLETED:
            body = _error_body(job)
            return web.json_response(body, status=self._error_status(body))
        outputs = [chunk.output for chunk in job.chunks]
        # Without chunks (the handler is no generator) the output came with the final post.
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
    # A string is SSE text already, and passed on as it is. What the real gateway does with other
    # outputs is not public: here each becomes one event.
    output = chunk.output
    return _as_bytes(output) if isinstance(output, str) else _as_event(output)


def _as_event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _as_bytes(text: str) -> bytes:
    # JSON can hold half a surrogate pair, which UTF-8 can't encode.
    return text.encode(errors="replace")


def _error_body(job: Job) -> dict[str, Any]:
    """Return the job's error in OpenAI's shape: the worker's own, if it has that shape."""
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
