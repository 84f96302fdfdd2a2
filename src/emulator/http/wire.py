"""Reads requests, for all routes."""

import re
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from emulator.options import READ_BYTES
from emulator.state.job import Job
from emulator.state.job_queue import Queue

_Model = TypeVar("_Model", bound=BaseModel)


async def read_body(request: web.Request, limit_bytes: int, oversize_status: int = 400) -> bytes:
    """Return the body.

    Raises:
        web.HTTPBadRequest: it is unreadable, or larger than the limit (with `oversize_status`).
    """
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


def parse_parts(body: bytes) -> dict[str, msgspec.Raw]:
    """Parse a body as ``parse_object`` does, but leave its values the JSON that they are.

    Raises:
        web.HTTPBadRequest: it is not a JSON object.
    """
    try:
        return msgspec.json.decode(body.decode(), type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise web.HTTPBadRequest(text="the body must be a JSON object") from error
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body, whatever its content type: the SDK posts JSON as a form.

    Raises:
        web.HTTPBadRequest: it is not a JSON object.
    """
    try:
        # Unlike Python's own, this parser refuses NaN, and nesting too deep to serialize again.
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
    # By the path, not by X-Request-ID: the SDK sets that header on a session that concurrent jobs
    # share, so it may name another job.
    job_id = request.match_info["job"]
    try:
        return queue.jobs[job_id]
    except KeyError:
        raise web.HTTPNotFound(text=f"there is no job {job_id!r}") from None


def read_number(request: web.Request, key: str, bounds: tuple[int, int]) -> int | None:
    """Read a whole number from the query; None if the key is absent.

    Raises:
        web.HTTPBadRequest: the value is something else, or not within the bounds.
    """
    text = request.query.get(key)
    if text is None:
        return None
    least, most = bounds
    # At most 15 digits: Python refuses to convert very long numbers.
    if not (re.fullmatch("[0-9]{1,15}", text) and least <= int(text) <= most):
        raise web.HTTPBadRequest(text=f"{key} must be a whole number from {least} to {most}")
    return int(text)


def validate(model: type[_Model], body: dict[str, Any]) -> _Model:
    """Return the body as an instance of the model.

    Raises:
        web.HTTPBadRequest: with all that is wrong.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise web.HTTPBadRequest(text=describe(error)) from error


def describe(error: ValidationError) -> str:
    """Return the mistakes of a validation error in one line, each after the name of its field."""
    mistakes = [
        ": ".join(filter(None, (".".join(map(str, mistake["loc"])), mistake["msg"])))
        for mistake in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(mistakes)
