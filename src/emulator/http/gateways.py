"""The gateways turn a request to another API into a job, and the job's outputs into HTTP.

The platform has a gateway for OpenAI's API. The one for Scale's LLM Engine is the emulator's own.
"""

import asyncio
import base64
import json
from abc import ABC, abstractmethod
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from pydantic_core import from_json

from emulator.http.app import (
    CLIENT_CLOSED_REQUEST,
    GatewayTimeout,
    read_llm_engine_keys,
    require_key,
)
from emulator.http.wire import (
    parse_raw_values,
    read_body,
    refuse_when_closed,
    send_json,
    send_parts,
    write_part,
)
from emulator.job import Job, Status
from emulator.job_queue import Queue
from emulator.options import MAX_RUNSYNC_BYTES, FailedJobHandling, Options

_GATEWAY_TIMEOUT = 504
_DONE_EVENT = b"data: [DONE]\n\n"
_SSE_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

_PATHS = "/{path:v1/llm/.+|v1/files(?:/.+)?|v2/batch-completions(?:/.+)?}"
_METHODS = ("GET", "POST", "PUT", "DELETE")
_STREAM_PATH = "v1/llm/completions-stream"
_FORM_TYPE = "multipart/form-data"
# Maximum size of an uploaded file. As base64, and with the other keys around it, the file just fits
# into a job's input.
_MAX_FILE_BYTES = MAX_RUNSYNC_BYTES * 7 // 10
# Text fields of a form that the worker knows.
_TEXT_FIELDS = ("purpose",)
# 4xx statuses for which the client has an exception; it has one for all 5xx, too.
_CLIENT_ERROR_STATUSES = (400, 401, 404, 429)


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

        A ``GatewayTimeout``, after ``timeout_s`` without a first output, doesn't end the job.
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
        body: dict[str, msgspec.Raw] | None = None
        if request.method == "POST":
            # The real gateway's limit is not public. /runsync, which also waits, has this one.
            content = await read_body(request, MAX_RUNSYNC_BYTES, self._options.oversize_status)
            body = parse_raw_values(content)
        job_input = {"openai_route": f"/{request.match_info['path']}", "openai_input": body}
        stream = body is not None and bytes(body.get("stream", b"")) == b"true"
        timeout_s = self._options.gateway_timeout_s
        return await self._respond(request, job_input, stream=stream, timeout_s=timeout_s)

    def _ends_stream(self, events: bytes) -> bool:
        return events.endswith(_DONE_EVENT)

    def _encode_error(self, job: Job) -> bytes:
        return encode_sse_event(to_openai_error(job))

    async def _send_whole(self, request: web.Request, job: Job) -> web.StreamResponse:
        if job.status is not Status.COMPLETED:
            body = to_openai_error(job)
            code = body["error"].get("code")
            status = code if isinstance(code, int) and 400 <= code <= 599 else 500
            fixed = {FailedJobHandling.OK: 200, FailedJobHandling.SERVER_ERROR: 500}
            status = fixed.get(self._options.failed_as, status)
            return web.json_response(body, status=status)
        output = job_output(job)
        if output[:1] == b'"':
            text = to_utf8(json.loads(bytes(output)))
            return await send_parts(request, [text], 200, "text/plain")
        return await send_json(request, [output])


class LLMEngineGateway(JobResponder):
    """Serves LLM Engine's unmodified client. The worker receives path, query, method and body."""

    def routes(self) -> list[web.RouteDef]:
        answer = self._wrap_for_client(self.answer_request)
        file_content = self._wrap_for_client(self.send_file_content)
        return [
            web.get("/v1/files/{id}/content", file_content),
            *(web.route(method, _PATHS, answer) for method in _METHODS),
        ]

    async def answer_request(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] | None
        if request.content_type == _FORM_TYPE:
            body = await _read_form(request)
        else:
            content = await read_body(request, MAX_RUNSYNC_BYTES, self._options.oversize_status)
            body = parse_raw_values(content) if content else None
        path = request.match_info["path"]
        stream = path == _STREAM_PATH and request.method == "POST"
        return await self._respond(request, _make_job_input(request, path, body), stream=stream)

    async def send_file_content(self, request: web.Request) -> web.StreamResponse:
        """Respond with the content of a file, which the worker yields in parts below 1 MB."""
        path = f"v1/files/{request.match_info['id']}/content"
        return await self._respond(request, _make_job_input(request, path, None), stream=False)

    def _encode_chunk(self, output: Any) -> bytes:
        # The worker yields a list of events if the job asks it to decode them.
        if isinstance(output, list):
            return b"".join(map(encode_sse_event, output))
        return super()._encode_chunk(output)

    def _ends_stream(self, events: bytes) -> bool:
        # Only the worker's event for a job's error is known to be the last one of a stream.
        _, _, last = (b"\n" + events).rpartition(b"\ndata: ")
        try:
            event = from_json(last)
        except ValueError:
            return False
        return isinstance(event, dict) and bool(event.get("error"))

    def _encode_error(self, job: Job) -> bytes:
        error = to_openai_error(job)
        content = {"error": _error_message(error), "timestamp": datetime.now(UTC).isoformat()}
        details = {"status_code": _map_status(error["error"].get("code")), "content": content}
        return encode_sse_event({"request_id": job.id, "error": details})

    async def _send_whole(self, request: web.Request, job: Job) -> web.StreamResponse:
        if job.status is not Status.COMPLETED:
            error = to_openai_error(job)
            status = _map_status(error["error"].get("code"))
            return web.json_response({"detail": _error_message(error), **error}, status=status)
        output = job_output(job)
        if "id" in request.match_info:
            parts = json.loads(bytes(output))
            # The parts are text, or base64 if the file is no text.
            content = "".join(
                part["content_base64"] if isinstance(part, dict) else part
                for part in (parts if isinstance(parts, list) else [parts])
            )
            output = json.dumps({"id": request.match_info["id"], "content": content}).encode()
        return await send_json(request, [output])

    def _wrap_for_client(self, handler: Handler) -> Handler:
        """Return a handler that checks the API key and shapes errors as the client expects."""
        handler = require_key(self._options.api_key, handler, read_llm_engine_keys)

        async def shape_errors(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                return web.json_response({"detail": error.text}, status=_map_status(error.status))

        return shape_errors


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


def _make_job_input(request: web.Request, path: str, body: Any) -> dict[str, Any]:
    query = request.rel_url.raw_query_string
    # Quote the path, which aiohttp has decoded, because the worker decodes its route again.
    route = "/" + quote(path) + (f"?{query}" if query else "")
    return {"route": route, "method": request.method, "body": body}


async def _read_form(request: web.Request) -> dict[str, Any]:
    """Read an upload form; return the body of the job that stores its file.

    Fields that the worker doesn't know are left out.
    """
    fields: dict[str, Any] = {}
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                continue
            content = await part.read()
            if part.name in _TEXT_FIELDS:
                fields[part.name] = content.decode()
            elif part.name == "file" and part.filename:
                if len(content) > _MAX_FILE_BYTES:
                    size = f"{len(content):,} bytes, and a job has at most {_MAX_FILE_BYTES:,}"
                    raise web.HTTPBadRequest(text=f"the file has {size}")
                encoded = base64.b64encode(content).decode()
                fields |= {"filename": part.filename, "content_base64": encoded}
    except (ValueError, RuntimeError, HttpProcessingError, web.RequestPayloadError) as error:
        raise web.HTTPBadRequest(text=f"the form can't be read: {error}") from error
    if "filename" not in fields:
        raise web.HTTPBadRequest(text="the form must have a file named `file`")
    return fields


def _error_message(error: dict[str, Any]) -> str:
    return str(error["error"].get("message", error["error"]))


def _map_status(code: Any) -> int:
    """Return the nearest status for which the client has an exception; 500 for 499 or no number."""
    if code in _CLIENT_ERROR_STATUSES:
        return int(code)
    if not isinstance(code, int) or code == CLIENT_CLOSED_REQUEST:
        return 500
    if 400 <= code < 500:
        return 400
    return code if 500 <= code <= 599 else 500
