"""What the HTTP modules share: JSON objects in, JSON errors out."""

import json
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from emulator.jobs import Job, Queue


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object. Its content type is ignored: the SDK posts JSON as a form."""
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object")
    return body


def find_job(queue: Queue, request: web.Request) -> Job:
    # By the path, never by X-Request-ID: the SDK sets that header on a session that concurrent
    # jobs share, so it may name another job.
    job_id = request.match_info["job"]
    try:
        return queue.jobs[job_id]
    except KeyError:
        raise web.HTTPNotFound(text=f"there is no job {job_id!r}") from None


def read_number(request: web.Request, key: str, default: int) -> int:
    text = request.query.get(key, str(default))
    if not text.isdecimal():
        raise web.HTTPBadRequest(text=f"{key} must be a whole number, not {text!r}")
    return int(text)


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.text}"
        answer = web.json_response({"error": message}, status=error.status)
        if isinstance(error, web.HTTPMethodNotAllowed):
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except ConnectionError:
        # The peer is gone: no failure of ours, and nobody is left to answer. aiohttp finds out
        # quietly when it tries.
        return web.Response()
