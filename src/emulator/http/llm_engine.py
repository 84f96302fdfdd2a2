"""The routes of Scale's LLM Engine, which the platform's own gateway doesn't have."""

import base64
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from pydantic_core import from_json

from emulator.http.app import CLIENT_CLOSED_REQUEST, read_llm_engine_keys, require_key
from emulator.http.gateway import JobResponder, encode_sse_event, job_output, to_openai_error
from emulator.http.wire import parse_raw_values, read_body, send_json
from emulator.options import MAX_RUNSYNC_BYTES
from emulator.state.job import Job, Status

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
        body = await self._read_body(request)
        path = request.match_info["path"]
        stream = path == _STREAM_PATH and request.method == "POST"
        return await self._respond(request, _make_job_input(request, path, body), stream=stream)

    async def send_file_content(self, request: web.Request) -> web.StreamResponse:
        """Respond with the content of a file, which the worker yields in parts below 1 MB."""
        path = f"v1/files/{request.match_info['id']}/content"
        return await self._respond(request, _make_job_input(request, path, None), stream=False)

    async def _read_body(self, request: web.Request) -> dict[str, Any] | None:
        if request.content_type == _FORM_TYPE:
            return await _read_form(request)
        body = await read_body(request, MAX_RUNSYNC_BYTES, self._options.oversize_status)
        return parse_raw_values(body) if body else None

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
            content = _join_file_content(json.loads(bytes(output)))
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


def _make_job_input(request: web.Request, path: str, body: Any) -> dict[str, Any]:
    query = request.rel_url.raw_query_string
    # Quote the path, which aiohttp has decoded, because the worker decodes its route again.
    route = "/" + quote(path) + (f"?{query}" if query else "")
    return {"route": route, "method": request.method, "body": body}


async def _read_form(request: web.Request) -> dict[str, Any]:
    """Read an upload form; return the body of the job that stores its file.

    Raises:
        web.HTTPBadRequest: The form is broken, has no file, or has a file that is too large.
        web.HTTPRequestEntityTooLarge: A part of the form is larger than the read limit.
    """
    fields: dict[str, Any] = {}
    try:
        async for part in await request.multipart():
            if isinstance(part, BodyPartReader):
                fields |= _field_to_job_body(part, await part.read())
    except (ValueError, RuntimeError, HttpProcessingError, web.RequestPayloadError) as error:
        raise web.HTTPBadRequest(text=f"the form can't be read: {error}") from error
    if "filename" not in fields:
        raise web.HTTPBadRequest(text="the form must have a file named `file`")
    return fields


def _field_to_job_body(part: BodyPartReader, content: bytes) -> dict[str, Any]:
    """Return a form's field as keys of a job's body; no keys if the worker doesn't know the field.

    Raises:
        web.HTTPBadRequest: The file is too large for a job.
        ValueError: A text field is not UTF-8.
    """
    if part.name in _TEXT_FIELDS:
        return {part.name: content.decode()}
    if part.name != "file" or not part.filename:
        return {}
    if len(content) > _MAX_FILE_BYTES:
        message = f"the file has {len(content):,} bytes, and a job has at most {_MAX_FILE_BYTES:,}"
        raise web.HTTPBadRequest(text=message)
    return {"filename": part.filename, "content_base64": base64.b64encode(content).decode()}


def _join_file_content(output: Any) -> str:
    """Join the parts of a file's content: text, or base64 for parts that are not text."""
    parts = output if isinstance(output, list) else [output]
    return "".join(part["content_base64"] if isinstance(part, dict) else part for part in parts)


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
