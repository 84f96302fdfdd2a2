"""The OpenAI gateway: turns a request to OpenAI's API into a job, and its outputs into HTTP."""

import asyncio
import json
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web
from pydantic_core import from_json

from emulator.http.app import CLIENT_CLOSED_REQUEST
from emulator.http.wire import parse_parts, read_body, refuse_when_closed
from emulator.options import RUNSYNC_BYTES, FailedAs, Options
from emulator.state.job import Job, Status
from emulator.state.job_queue import Queue

_GATEWAY_TIMEOUT = 504
_LAST_EVENT = b"data: [DONE]\n\n"
_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Answering(ABC):
    """Makes a job of a request, and an answer of what the job gives."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    async def _answer(
        self, request: web.Request, given: dict[str, Any], *, stream: bool
    ) -> web.StreamResponse:
        """Answer with the outputs of a job. A client that hangs up cancels it (an option)."""
        refuse_when_closed(self._queue)
        payload = {"input": msgspec.Raw(msgspec.json.encode(given))}
        job = self._queue.submit(payload, sync=True)
        try:
            if stream:
                return await self._stream(request, job)
            await job.wait_ended()
            return self._whole(request, job)
        except (asyncio.CancelledError, ConnectionError):
            if self._options.cancel_on_disconnect:
                self._queue.cancel(job)
            raise

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        async with aclosing(job.follow()) as chunks:
            first = await anext(chunks, None)
            if first is None:
                return self._whole(request, job)
            response = web.StreamResponse(headers=_SSE_HEADERS)
            await response.prepare(request)
            events = self._events(first.output)
            await response.write(events)
            # Clients hang up after the last event. Reading on would notice, and cancel the job.
            while not self._is_end(events) and (chunk := await anext(chunks, None)):
                events = self._events(chunk.output)
                await response.write(events)
        if not self._is_end(events) and job.status is not Status.COMPLETED:
            await response.write(self._broken(job))
        await response.write_eof()
        return response

    def _events(self, output: Any) -> bytes:
        """Return a chunk of a stream: a string is SSE text already, all else becomes an event."""
        return as_bytes(output) if isinstance(output, str) else as_event(output)

    @abstractmethod
    def _is_end(self, events: bytes) -> bool:
        """Return whether no event follows these in a stream."""

    @abstractmethod
    def _broken(self, job: Job) -> bytes:
        """Return the event that tells the reader of a stream how its job failed."""

    @abstractmethod
    def _whole(self, request: web.Request, job: Job) -> web.Response:
        """Return the answer for a job of which nothing was streamed to the client."""


class Gateway(Answering):
    """Serves /openai/…. Path and body reach the worker; headers and query do not.

    What the real gateway does with chunks that are no text is not public: here each is an event.
    """

    def routes(self) -> list[web.RouteDef]:
        # No DELETE: a job does not hold the method, so the worker would take it for a POST.
        return [
            web.get("/openai/{path:.+}", self.answer),
            web.post("/openai/{path:.+}", self.answer),
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request) if request.method == "POST" else None
        given = {"openai_route": f"/{request.match_info['path']}", "openai_input": body}
        stream = body is not None and bytes(body.get("stream", b"")) == b"true"
        return await self._answer(request, given, stream=stream)

    async def _read(self, request: web.Request) -> dict[str, msgspec.Raw]:
        # The gateway's real limit is not public; its caller waits, as that of /runsync.
        body = await read_body(request, RUNSYNC_BYTES, self._options.oversize_status)
        return parse_parts(body)

    def _is_end(self, events: bytes) -> bool:
        return events.endswith(_LAST_EVENT)

    def _broken(self, job: Job) -> bytes:
        return as_event(error_of(job))

    def _whole(self, request: web.Request, job: Job) -> web.Response:
        if job.status is not Status.COMPLETED:
            body = error_of(job)
            return web.json_response(body, status=self._error_status(body))
        output = output_of(job)
        if isinstance(output, str):
            return web.Response(body=as_bytes(output), content_type="text/plain", charset="utf-8")
        return web.json_response(output)

    def _error_status(self, body: dict[str, Any]) -> int:
        if self._options.failed_as is FailedAs.OK:
            return 200
        code = body["error"].get("code")
        if self._options.failed_as is FailedAs.SERVER_ERROR or not isinstance(code, int):
            return 500
        return code if 400 <= code <= 599 else 500


def output_of(job: Job) -> Any:
    """Return what a job gave: a single output as it is, several as a list."""
    outputs = [chunk.output for chunk in job.chunks]
    # Without chunks (the handler is no generator) the output came with the final post.
    return outputs[0] if len(outputs) == 1 else outputs or job.output


def error_of(job: Job) -> dict[str, Any]:
    """Return the job's error in OpenAI's shape: the worker's own, if it has that shape."""
    if job.status is Status.CANCELLED:
        return _openai_error(f"job {job.id} was cancelled", "cancelled", CLIENT_CLOSED_REQUEST)
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


def as_event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def as_bytes(text: str) -> bytes:
    # JSON can hold half a surrogate pair, which UTF-8 can't encode.
    return text.encode(errors="replace")


def _openai_error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
