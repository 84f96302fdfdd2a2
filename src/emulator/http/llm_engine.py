"""The routes of Scale's LLM Engine, which the platform's own gateway does not have."""

import base64
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from pydantic_core import from_json

from emulator.http.app import CLIENT_CLOSED_REQUEST, any_key, require_key
from emulator.http.gateway import Answering, as_event, error_of, output_of
from emulator.http.wire import parse_parts, read_body
from emulator.options import RUNSYNC_BYTES
from emulator.state.job import Job, Status

_PATHS = "/{path:v1/llm/.+|v1/files(?:/.+)?|v2/batch-completions(?:/.+)?}"
_METHODS = ("GET", "POST", "PUT", "DELETE")
_STREAM = "v1/llm/completions-stream"
_FORM = "multipart/form-data"
# Its base64, and what is around it, are as much as a job's input may be.
_LARGEST_FILE = RUNSYNC_BYTES * 7 // 10
# Of a form: the text fields that the worker knows.
_FIELDS = ("purpose",)
# What the client has an exception for, besides 5xx.
_CLIENT_ERRORS = (400, 401, 404, 429)


class LLMEngine(Answering):
    """Serves LLM Engine's unmodified client. Path, query, method and body reach the worker."""

    def routes(self) -> list[web.RouteDef]:
        answer, content = self._for_the_client(self.answer), self._for_the_client(self.content)
        return [
            web.get("/v1/files/{id}/content", content),
            *(web.route(method, _PATHS, answer) for method in _METHODS),
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        path = request.match_info["path"]
        stream = path == _STREAM and request.method == "POST"
        return await self._answer(request, _given(request, path, body), stream=stream)

    async def content(self, request: web.Request) -> web.StreamResponse:
        """Answer with the content of a file, which the worker yields in parts below 1 MB."""
        path = f"v1/files/{request.match_info['id']}/content"
        return await self._answer(request, _given(request, path, None), stream=False)

    async def _read(self, request: web.Request) -> dict[str, Any] | None:
        if request.content_type == _FORM:
            return await _read_form(request)
        body = await read_body(request, RUNSYNC_BYTES, self._options.oversize_status)
        return parse_parts(body) if body else None

    def _events(self, output: Any) -> bytes:
        # The worker yields a list of events where it is told to decode them.
        if isinstance(output, list):
            return b"".join(map(as_event, output))
        return super()._events(output)

    def _is_end(self, events: bytes) -> bool:
        # The worker itself tells the reader why a job fails; there is no last event otherwise.
        _, _, last = (b"\n" + events).rpartition(b"\ndata: ")
        try:
            event = from_json(last)
        except ValueError:
            return False
        return isinstance(event, dict) and bool(event.get("error"))

    def _broken(self, job: Job) -> bytes:
        error = error_of(job)
        content = {"error": _message(error), "timestamp": datetime.now(UTC).isoformat()}
        told = {"status_code": _status(error["error"].get("code")), "content": content}
        return as_event({"request_id": job.id, "error": told})

    def _whole(self, request: web.Request, job: Job) -> web.Response:
        if job.status is not Status.COMPLETED:
            error = error_of(job)
            status = _status(error["error"].get("code"))
            return web.json_response({"detail": _message(error), **error}, status=status)
        output = output_of(job)
        if "id" in request.match_info:
            output = {"id": request.match_info["id"], "content": _text(output)}
        return web.json_response(output)

    def _for_the_client(self, handler: Handler) -> Handler:
        """Return a handler that takes the key as the client sends it, and answers errors so."""
        handler = require_key(self._options.api_key, handler, any_key)

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                return web.json_response({"detail": error.text}, status=_status(error.status))

        return answer


def _given(request: web.Request, path: str, body: Any) -> dict[str, Any]:
    query = request.rel_url.raw_query_string
    # The path comes decoded, and the worker decodes its route once more.
    route = "/" + quote(path) + (f"?{query}" if query else "")
    return {"route": route, "method": request.method, "body": body}


async def _read_form(request: web.Request) -> dict[str, Any]:
    """Return the body of the job that keeps a form's file.

    Raises:
        web.HTTPBadRequest: the form is broken, has no file, or one that is too large.
        web.HTTPRequestEntityTooLarge: a part of it is larger than what is read at all.
    """
    found: dict[str, Any] = {}
    try:
        async for part in await request.multipart():
            if isinstance(part, BodyPartReader):
                found |= _read_field(part, await part.read())
    except (ValueError, RuntimeError, HttpProcessingError, web.RequestPayloadError) as broken:
        raise web.HTTPBadRequest(text=f"the form can't be read: {broken}") from broken
    if "filename" not in found:
        raise web.HTTPBadRequest(text="the form must have a file of the name `file`")
    return found


def _read_field(part: BodyPartReader, content: bytes) -> dict[str, Any]:
    """Return what a field of a form is in a job's body: nothing, if the worker does not know it.

    Raises:
        web.HTTPBadRequest: the file is too large for a job.
        ValueError: a text is no UTF-8.
    """
    if part.name in _FIELDS:
        return {part.name: content.decode()}
    if part.name != "file" or not part.filename:
        return {}
    if len(content) > _LARGEST_FILE:
        size = f"{len(content):,} bytes, and {_LARGEST_FILE:,} is the most"
        raise web.HTTPBadRequest(text=f"the file has {size}: a job holds it")
    return {"filename": part.filename, "content_base64": base64.b64encode(content).decode()}


def _text(output: Any) -> str:
    """Join the parts of a content: texts, or base64 of what is no text."""
    parts = output if isinstance(output, list) else [output]
    return "".join(part["content_base64"] if isinstance(part, dict) else part for part in parts)


def _message(error: dict[str, Any]) -> str:
    return str(error["error"].get("message", error["error"]))


def _status(code: Any) -> int:
    """Return the status that the client has an exception for."""
    if code in _CLIENT_ERRORS:
        return int(code)
    if not isinstance(code, int) or code == CLIENT_CLOSED_REQUEST:
        return 500
    if 400 <= code < 500:
        return 400
    return code if 500 <= code <= 599 else 500
