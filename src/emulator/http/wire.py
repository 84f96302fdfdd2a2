"""Reads and validates requests, and sends large responses, for all routes."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from emulator.job import Job
from emulator.job_queue import Queue
from emulator.options import MAX_READ_BYTES

# Bytes of a response that are sent at a time, and seconds that a caller has to read them.
SEND_BYTES = 65_536
READ_TIMEOUT_S = 30.0

_Model = TypeVar("_Model", bound=BaseModel)


async def read_body(request: web.Request, max_bytes: int, oversize_status: int = 400) -> bytes:
    # Not request.read(), which stores the bytes in the request until the connection has another.
    body, size = bytearray(), 0
    try:
        while (part := await request.content.readany()) and size <= MAX_READ_BYTES:
            size += len(part)
            if size <= max_bytes:
                body += part
            else:
                # Read on without storing the bytes, so that the client gets the response.
                body.clear()
    except web.RequestPayloadError as error:
        raise web.HTTPBadRequest(text=f"the body can't be read: {error}") from error
    if size <= max_bytes:
        return bytes(body)
    text = f"more than {MAX_READ_BYTES:,}" if size > MAX_READ_BYTES else f"{size:,}"
    too_large = web.HTTPBadRequest(text=f"the body has {text} bytes, and {max_bytes:,} is the most")
    too_large.set_status(oversize_status)
    raise too_large


def parse_raw_values(body: bytes) -> dict[str, msgspec.Raw]:
    """Parse a body as ``parse_object`` does, but leave each value as unparsed JSON."""
    try:
        return msgspec.json.decode(body.decode(), type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise web.HTTPBadRequest(text="the body must be a JSON object") from error
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object with any content type: the SDK posts JSON as a form."""
    try:
        # Unlike Python's parser, this one rejects NaN and nesting too deep to serialize again.
        parsed = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object")
    return parsed


def refuse_when_closed(queue: Queue) -> None:
    if queue.is_closed:
        raise web.HTTPServiceUnavailable(text="the endpoint is shutting down")


def find_job(queue: Queue, request: web.Request) -> Job:
    # The path identifies the job, not X-Request-ID: the SDK sets that header on a session that
    # concurrent jobs share, so the header may name another job.
    job_id = request.match_info["job"]
    try:
        return queue.jobs[job_id]
    except KeyError:
        raise web.HTTPNotFound(text=f"there is no job {job_id!r}") from None


def read_query_number(request: web.Request, key: str, bounds: tuple[int, int]) -> int | None:
    """Read a whole number within bounds from the query; None if the key is absent."""
    text = request.query.get(key)
    if text is None:
        return None
    minimum, maximum = bounds
    # At most 15 digits: Python refuses to convert very long numbers.
    if not (re.fullmatch("[0-9]{1,15}", text) and minimum <= int(text) <= maximum):
        raise web.HTTPBadRequest(text=f"{key} must be a whole number from {minimum} to {maximum}")
    return int(text)


def validate(model: type[_Model], body: dict[str, Any]) -> _Model:
    """Return the body as an instance of the model, or refuse it with a list of all mistakes."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise web.HTTPBadRequest(text=describe_errors(error)) from error


def describe_errors(error: ValidationError) -> str:
    """Return the mistakes of a validation error in one line, each after the name of its field."""
    mistakes = [
        ": ".join(filter(None, (".".join(map(str, mistake["loc"])), mistake["msg"])))
        for mistake in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(mistakes)


async def send_json(
    request: web.Request, parts: Iterable[bytes | memoryview], status: int = 200
) -> web.StreamResponse:
    """Send the parts of a JSON text: a large one only as fast as the caller reads it."""
    return await send_parts(request, parts, status, "application/json")


async def send_parts(
    request: web.Request, parts: Iterable[bytes | memoryview], status: int, content_type: str
) -> web.StreamResponse:
    """Send the parts of a text, in UTF-8, as ``send_json`` does."""
    parts = list(parts)
    size = sum(map(len, parts))
    if size <= SEND_BYTES or request.method == "HEAD":
        body = b"".join(parts)
        return web.Response(body=body, status=status, content_type=content_type, charset="utf-8")
    response = web.StreamResponse(status=status)
    response.content_type, response.charset, response.content_length = content_type, "utf-8", size
    await response.prepare(request)
    for part in parts:
        for start in range(0, len(part), SEND_BYTES):
            await write_part(request, response, part[start : start + SEND_BYTES])
    await response.write_eof()
    return response


async def write_part(
    request: web.Request, response: web.StreamResponse, part: bytes | memoryview
) -> None:
    """Write a part and wait until most of it is read; ``ConnectionError`` if the caller doesn't."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            await response.write(part)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the caller does not read the response") from None
