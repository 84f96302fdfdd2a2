"""What every request passes first: the request log, errors as JSON, web pages, the API key."""

import base64
import binascii
import hmac
import ipaddress
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

# The fault on demand that a request triggered, for the request log.
FAULT = web.RequestKey("fault", str)
CLIENT_CLOSED_REQUEST = 499
# Short, because long polls would not end in time: they are cut off.
_SHUTDOWN_S = 0.05
# The name or address in a Host, which may have a port behind it.
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::\d*)?")
# Names that the public DNS has not, such as host.docker.internal. Not .local: in a network anybody
# may take such a name (mDNS).
_LOCAL = (".localhost", ".internal")


def middlewares(running: AsyncExitStack, request_log: Path | None) -> list[Middleware]:
    """Return the middlewares, with the log first if there is to be one.

    Args:
        running: closes the log.
        request_log: a new file.

    Raises:
        OSError: the log can't be written.
    """
    always: list[Middleware] = [_json_errors, _refuse_web_pages]
    if request_log is None:
        return always
    return [_log_requests(running.enter_context(_open_log(request_log))), *always]


async def set_up(running: AsyncExitStack, app: web.Application) -> web.AppRunner:
    """Return what serves an app on one port, until ``running`` ends."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,  # of a worker or client that hung up
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    running.push_async_callback(runner.cleanup)
    return runner


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn HTTP errors into JSON: `{"error": "<method> <path>: <message>"}`."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.text}"
        answer = web.json_response({"error": message}, status=error.status)
        if isinstance(error, web.HTTPMethodNotAllowed):
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except ConnectionError:
        # The peer hung up, which is no error of the emulator's. Nothing is sent.
        return web.Response()


@web.middleware
async def _refuse_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests of other sites' pages, and those to a name that may be such a site's.

    A browser says in Sec-Fetch-Site whether a page of another site asks, and which one in the
    Origin of a post. By a name of its own that has this machine's address, a page is of the same
    site: so the Host counts, too, which no browser leaves out.
    """
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    if host is not None and not _is_local(host):
        raise web.HTTPForbidden(text="the Host is none of this machine")
    foreign = origin is not None and origin.partition("://")[2] != host
    if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise web.HTTPForbidden(text="not for web pages")
    return await handler(request)


def _is_local(host: str) -> bool:
    if not (found := _HOST.fullmatch(host)):
        return False
    name = (found[1] or found[2]).lower()
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_LOCAL)
    # 0.0.0.0 and the like lead here as well, and for them a browser says nothing of the site.
    return not (address.is_unspecified or getattr(address, "ipv4_mapped", None))


def _log_requests(log: logging.Logger) -> Middleware:
    """Return a middleware that logs a request when it is answered or its caller hung up.

    aiohttp's access log leaves out the latter.
    """

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        arrived, start = time.time(), time.monotonic()
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
            return response
        finally:
            line = {
                "at": round(arrived, 6),  # Unix time
                "method": request.method,
                "path": request.path_qs,
                "status": CLIENT_CLOSED_REQUEST if response is None else response.status,
                "ms": round((time.monotonic() - start) * 1000, 3),
                "bytes_in": request.content_length or 0,
                "bytes_out": 0 if response is None else _size(response),
            }
            if FAULT in request:
                line["fault"] = request[FAULT]
            log.info(json.dumps(line))

    return answer


def _size(response: web.StreamResponse) -> int:
    # For a stream aiohttp knows only all bytes written, headers included.
    return response.body_length if response.content_length is None else response.content_length


@contextmanager
def _open_log(path: Path) -> Iterator[logging.Logger]:
    """Yield a logger that writes a new file.

    Raises:
        OSError: the file can't be written.
    """
    path.open("a").close()
    # Emptied only by the first request: if the port is taken, another emulator may be writing it.
    handler = logging.FileHandler(path, mode="w", encoding="utf-8", delay=True)
    # Not from the tree of loggers: it belongs to one emulator.
    logger = logging.Logger("emulator.requests")
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()


def platform_key(request: web.Request) -> list[str]:
    """Return the key that a request carries as the platform takes it."""
    # RunPod's documentation has it both with and without "Bearer".
    return [request.headers.get("Authorization", "").removeprefix("Bearer ")]


def any_key(request: web.Request) -> list[str]:
    """Return the keys that a request carries: besides the platform's x-api-key and Basic's user."""
    sent = [*platform_key(request), request.headers.get("x-api-key", "")]
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        sent.append(_user(token))
    return sent


def require_key(
    key: str | None, handler: Handler, sent: Callable[[web.Request], list[str]] = platform_key
) -> Handler:
    """Return a handler that answers 401 to requests without the key.

    Args:
        key: None: none is needed.
        handler: for requests that carry it.
        sent: returns what a request carries, of which one has to be the key.
    """
    if key is None:
        return handler
    expected = _as_bytes(key)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not any(hmac.compare_digest(_as_bytes(one), expected) for one in sent(request)):
            raise web.HTTPUnauthorized(text="the API key is missing or wrong")
        return await handler(request)

    return answer


def _user(token: str) -> str:
    try:
        found = base64.b64decode(token, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return found.partition(b":")[0].decode(errors="surrogateescape")


def _as_bytes(text: str) -> bytes:
    # A header may hold bytes that are not valid text.
    return text.encode(errors="surrogateescape")
