"""The OpenAI gateway: turns a request to OpenAI's API into a job, and its outputs into HTTP."""

import asyncio
import json
from abc import ABC, abstractmethod
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web
from pydantic_core import from_json

from emulator.http.app import CLIENT_CLOSED_REQUEST, GatewayTimeout
from emulator.http.wire import (
    parse_raw_values,
    read_body,
    refuse_when_closed,
    send_json,
    send_parts,
    write_part,
)
from emulator.options import MAX_RUNSYNC_BYTES, FailedJobHandling, Options
from emulator.state.job import Job, Status
from emulator.state.job_queue import Queue

_GATEWAY_TIMEOUT = 504
_DONE_EVENT = b"data: [DONE]\n\n"
_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class JobResponder(ABC):
    """Runs a job for a request and turns the job's outputs into the response."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options

    async def _respond(
        self,
        request: web.Request,
        job_input: dict[str, Any],
        *,
        stream: bool,
        timeout_s: float | None = None,
    ) -> web.StreamResponse:
        """Run a job and respond with its outputs; by default, cancel it if the client hangs up.

        Raises:
            GatewayTimeout: The response has not begun within ``timeout_s``. The job continues.
        """
        refuse_when_closed(self._queue)
        payload = {"input": msgspec.Raw(msgspec.json.encode(job_input))}
        job = self._queue.submit(payload, sync=True)
        try:
            is_answered = await job.changed.wait_for(
                lambda: job.has_ended or (stream and bool(job.chunks)), timeout_s
            )
            if not is_answered:
                raise GatewayTimeout
            if stream:
                return await self._stream_job(request, job)
            return await self._send_whole(request, job)
        except (asyncio.CancelledError, ConnectionError):
            if self._options.cancel_on_disconnect:
                self._queue.cancel(job)
            raise

    async def _stream_job(self, request: web.Request, job: Job) -> web.StreamResponse:
        async with aclosing(job.follow_chunks()) as chunks:
            first_chunk = await anext(chunks, None)
            if first_chunk is None:
                return await self._send_whole(request, job)
            response = web.StreamResponse(headers=_SSE_HEADERS)
            await response.prepare(request)
            events = self._encode_chunk(first_chunk.output)
            await write_part(request, response, events)
            # Stop after the last event. Clients then hang up, and waiting for another chunk would
            # detect the hangup and cancel the job.
            while not self._ends_stream(events) and (chunk := await anext(chunks, None)):
                events = self._encode_chunk(chunk.output)
                await write_part(request, response, events)
        if not self._ends_stream(events) and job.status is not Status.COMPLETED:
            await write_part(request, response, self._encode_error(job))
        await response.write_eof()
        return response

    def _encode_chunk(self, output: Any) -> bytes:
        """Return a chunk's output as SSE: a string is SSE already, other values become an event."""
        return to_utf8(output) if isinstance(output, str) else encode_sse_event(output)

    @abstractmethod
    def _ends_stream(self, events: bytes) -> bool:
        """Return whether these events are the last of a stream."""

    @abstractmethod
    def _encode_error(self, job: Job) -> bytes:
        """Return the event that ends the stream of a job that did not complete."""

    @abstractmethod
    async def _send_whole(self, request: web.Request, job: Job) -> web.StreamResponse:
        """Send the whole response for a job of which nothing was streamed to the client."""


class OpenAIGateway(JobResponder):
    """Serves ``/openai/``. The worker receives path and body, but no headers and no query.

    How the real gateway sends chunks that are not strings is not public. Here each is an event.
    """

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/openai/{path:.+}", self.answer_request)]

    async def answer_request(self, request: web.Request) -> web.StreamResponse:
        # The job contains no method, so the worker would mistake a DELETE for a POST.
        if request.method not in ("GET", "HEAD", "POST"):
            return _refuse(405, f"The gateway forwards GET and POST, not {request.method}")
        if request.content_type == "multipart/form-data":
            return _refuse(415, "The gateway forwards JSON, not forms")
        body = await self._read_body(request) if request.method == "POST" else None
        job_input = {"openai_route": f"/{request.match_info['path']}", "openai_input": body}
        stream = body is not None and bytes(body.get("stream", b"")) == b"true"
        timeout_s = self._options.gateway_timeout_s
        return await self._respond(request, job_input, stream=stream, timeout_s=timeout_s)

    async def _read_body(self, request: web.Request) -> dict[str, msgspec.Raw]:
        # The real gateway's limit is not public. This is the limit of /runsync, which also waits.
        body = await read_body(request, MAX_RUNSYNC_BYTES, self._options.oversize_status)
        return parse_raw_values(body)

    def _ends_stream(self, events: bytes) -> bool:
        return events.endswith(_DONE_EVENT)

    def _encode_error(self, job: Job) -> bytes:
        return encode_sse_event(to_openai_error(job))

    async def _send_whole(self, request: web.Request, job: Job) -> web.StreamResponse:
        if job.status is not Status.COMPLETED:
            body = to_openai_error(job)
            return web.json_response(body, status=self._error_status(body))
        output = job_output(job)
        if output[:1] == b'"':
            text = to_utf8(json.loads(bytes(output)))
            return await send_parts(request, [text], 200, "text/plain")
        return await send_json(request, [output])

    def _error_status(self, body: dict[str, Any]) -> int:
        if self._options.failed_as is FailedJobHandling.OK:
            return 200
        code = body["error"].get("code")
        if self._options.failed_as is FailedJobHandling.SERVER_ERROR or not isinstance(code, int):
            return 500
        return code if 400 <= code <= 599 else 500


def job_output(job: Job) -> bytes | memoryview:
    """Return the JSON of a job's chunks, or of its result without chunks; a single one alone.

    A result without chunks is a list, too, if the handler is a generator.
    """
    if job.chunks:
        outputs = [chunk.output for chunk in job.chunks]
        return json.dumps(outputs[0] if len(outputs) == 1 else outputs).encode()
    output = job.result or b"null"
    if output.startswith(b"["):
        items = msgspec.json.decode(output, type=list[msgspec.Raw])
        # A view, since a copy of a large output would take long.
        return memoryview(items[0]) if len(items) == 1 else output
    return output


def to_openai_error(job: Job) -> dict[str, Any]:
    """Return a job's error in OpenAI's shape, unchanged if the worker's error has this shape."""
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


def encode_sse_event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def to_utf8(text: str) -> bytes:
    # JSON can have lone surrogates, which UTF-8 can't encode.
    return text.encode(errors="replace")


def _refuse(status: int, text: str) -> web.Response:
    message = f"{text}: use the client's proxy (python -m llm_worker_client proxy)."
    return web.json_response(_openai_error(message, "invalid_request_error", status), status=status)


def _openai_error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
