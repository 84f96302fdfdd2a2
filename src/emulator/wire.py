"""What the HTTP modules share: JSON objects in, JSON errors out."""

import hmac
import re
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from emulator.job_queue import Queue
from emulator.jobs import Job
from emulator.limits import READ_BYTES

_Model = TypeVar("_Model", bound=BaseModel)


async def read_body(request: web.Request, limit_bytes: int, oversize_status: int = 400) -> bytes:
    """The body, or the platform's answer to one above a limit of its."""
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        size = f"more than {READ_BYTES:,}"
    except web.RequestPayloadError as unreadable:
        raise web.HTTPBadRequest(text=f"the body can't be read: {unreadable}") from unreadable
    else:
        if len(body) <= limit_bytes:
            return body
        size = f"{len(body):,}"
    error = web.HTTPBadRequest(text=f"the body has {size} bytes, and {limit_bytes:,} is the most")
    error.set_status(oversize_status)
    raise error


def parse_object(body: bytes) -> dict[str, Any]:
    """A body as a JSON object. Its content type is ignored: the SDK posts JSON as a form."""
    try:
        # Unlike Python's own, this parser refuses NaN, and nesting that nothing could print again.
        parsed = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object")
    return parsed


def refuse_when_closed(queue: Queue) -> None:
    if queue.closed:
        raise web.HTTPServiceUnavailable(text="the endpoint is shutting down")


def find_job(queue: Queue, request: web.Request) -> Job:
    # By the path, never by X-Request-ID: the SDK sets that header on a session that concurrent
    # jobs share, so it may name another job.
    job_id = request.match_info["job"]
    try:
        return queue.jobs[job_id]
    except KeyError:
        raise web.HTTPNotFound(text=f"there is no job {job_id!r}") from None


def read_number(request: web.Request, key: str, bounds: tuple[int, int]) -> int | None:
    """A whole number of the query; None where it is not given."""
    text = request.query.get(key)
    if text is None:
        return None
    least, most = bounds
    # Short, because Python refuses to convert very long ones.
    if not (re.fullmatch("[0-9]{1,15}", text) and least <= int(text) <= most):
        raise web.HTTPBadRequest(text=f"{key} must be a whole number from {least} to {most}")
    return int(text)


def validated(model: type[_Model], given: dict[str, Any]) -> _Model:
    """An object of a body's, checked by its model."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise refusal(error) from error


def refusal(error: ValidationError) -> web.HTTPBadRequest:
    """What a model says is wrong with a body."""
    mistakes = [
        ": ".join(filter(None, (".".join(map(str, mistake["loc"])), mistake["msg"])))
        for mistake in error.errors(include_url=False, include_input=False)
    ]
    return web.HTTPBadRequest(text="; ".join(mistakes))


def with_key(key: str | None, handler: Handler) -> Handler:
    """A handler that answers 401 to those without the key; any caller may come where it is None."""
    if key is None:
        return handler

    async def answer(request: web.Request) -> web.StreamResponse:
        # RunPod's documentation writes it both with and without the word.
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        # A header may hold bytes that are no text.
        if not hmac.compare_digest(
            given.encode(errors="surrogateescape"), key.encode(errors="surrogateescape")
        ):
            raise web.HTTPUnauthorized(text="the API key is missing or wrong")
        return await handler(request)

    return answer


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
