"""Request log, errors, API key, protection from web pages and slow bodies, for all routes."""

import asyncio
import base64
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from llm_worker_console.web_pages import PageRefusal, find_page_refusal

# Key of a request under which the fault that it triggered is stored for the request log.
FAULT_KEY = web.RequestKey("fault", str)
# Key of an app under which the path of its endpoint is stored, for messages.
ENDPOINT_PATH_KEY = web.AppKey("endpoint_path", str)
CLIENT_CLOSED_REQUEST = 499
# Status and page of Cloudflare, which is in front of the real platform.
_NO_RESPONSE_IN_TIME = 524
_TIMEOUT_PAGE = (
    "<!DOCTYPE html><html><head><title>524</title></head>"
    "<body>The endpoint did not respond in time.</body></html>\n"
)
# Seconds in which a caller has to send each further WINDOW_BYTES of a body.
BODY_WINDOW_S = 30.0
WINDOW_BYTES = 300_000
# Seconds that requests get to finish at shutdown. It is short because only long polls are left, and
# these may be cancelled.
_SHUTDOWN_TIMEOUT_S = 0.05
_PAGE_REFUSALS = {
    PageRefusal.FOREIGN_HOST: "the Host header does not name this machine: call 127.0.0.1",
    PageRefusal.FOREIGN_PAGE: "web pages may not call this",
}


class GatewayTimeout(Exception):
    """A response has not begun within the gateway's timeout; its job continues."""


class SlowBody(TimeoutError):
    """A body arrives too slowly. aiohttp treats a TimeoutError like a caller that hangs up."""


def make_middlewares(exit_stack: AsyncExitStack, request_log: Path | None) -> list[Middleware]:
    """Return the middlewares of an app, with the request log first if there is a file for it.

    The log overwrites the file; ``exit_stack`` closes it.
    """
    common: list[Middleware] = [_convert_errors_to_json, _refuse_web_pages, _limit_body_time]
    if request_log is None:
        return common
    return [exit_stack.enter_context(_open_request_log(request_log)), *common]


async def set_up_runner(exit_stack: AsyncExitStack, app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,  # cancels the handler when a worker or client hangs up
        shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    exit_stack.push_async_callback(runner.cleanup)
    return runner


@web.middleware
async def _convert_errors_to_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn HTTP errors into ``{"error": "<method> <path>: <message>"}``, but a 524 into a page."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.text}"
        endpoint = request.app.get(ENDPOINT_PATH_KEY)
        if endpoint and isinstance(request.match_info.http_exception, web.HTTPNotFound):
            message += f" (the endpoint is {endpoint}, and OpenAI's API {endpoint}/openai/v1)"
        response = web.json_response({"error": message}, status=error.status)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except GatewayTimeout:
        return web.Response(
            status=_NO_RESPONSE_IN_TIME, text=_TIMEOUT_PAGE, content_type="text/html"
        )
    except SlowBody:
        text = f"the body came slower than {WINDOW_BYTES:,} bytes in {BODY_WINDOW_S:g} s"
        return web.json_response({"error": f"{request.method} {request.path}: {text}"}, status=408)
    except ConnectionError:
        # The peer hung up, which is not an error of the emulator. The response is never sent.
        return web.Response()


@web.middleware
async def _refuse_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    if refusal := find_page_refusal(request.headers):
        raise web.HTTPForbidden(text=_PAGE_REFUSALS[refusal])
    return await handler(request)


@web.middleware
async def _limit_body_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the handler's reads of a body raise ``SlowBody`` if the body arrives too slowly."""
    body, loop = request.content, asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def check(last_size: int) -> None:
        nonlocal timer
        if body.is_eof():
            return
        if body.total_bytes < last_size + WINDOW_BYTES:
            body.set_exception(SlowBody())
        else:
            timer = loop.call_later(BODY_WINDOW_S, check, body.total_bytes)

    timer = loop.call_later(BODY_WINDOW_S, check, 0)
    try:
        return await handler(request)
    finally:
        if timer is not None:
            timer.cancel()


@contextmanager
def _open_request_log(path: Path) -> Iterator[Middleware]:
    """Yield a middleware that logs a request when it is answered or its caller hangs up.

    aiohttp's access log omits requests whose caller hung up. The file is overwritten at the first
    request, not at startup: if the port is taken, another emulator may be writing to it.
    """
    path.open("a").close()
    log_file = logging.FileHandler(path, mode="w", encoding="utf-8", delay=True)
    # Not registered in the logging hierarchy because it belongs to a single emulator.
    log = logging.Logger("emulator.requests")
    log.addHandler(log_file)

    @web.middleware
    async def log_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        arrived, start = time.time(), time.monotonic()
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
            return response
        finally:
            status, size = CLIENT_CLOSED_REQUEST, 0
            if response is not None:
                # For a stream, aiohttp knows only the written bytes, which include the headers.
                length = response.content_length
                status, size = response.status, response.body_length if length is None else length
            line = {
                "at": round(arrived, 6),  # Unix time
                "method": request.method,
                "path": request.path_qs,
                "status": status,
                "ms": round((time.monotonic() - start) * 1000, 3),
                "bytes_in": request.content_length or 0,
                "bytes_out": size,
            }
            if FAULT_KEY in request:
                line["fault"] = request[FAULT_KEY]
            log.info(json.dumps(line))

    try:
        yield log_request
    finally:
        log_file.close()


def read_platform_keys(request: web.Request) -> list[str]:
    """Return a list with the API key from the platform's header; "" if the key is absent."""
    # RunPod's documentation shows the header both with and without "Bearer".
    return [request.headers.get("Authorization", "").removeprefix("Bearer ")]


def read_llm_engine_keys(request: web.Request) -> list[str]:
    """Return the API keys from all headers of LLM Engine's client; "" for an absent key."""
    keys = [*read_platform_keys(request), request.headers.get("x-api-key", "")]
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):  # not base64
            user, _, _ = base64.b64decode(token, validate=True).partition(b":")
            keys.append(user.decode(errors="surrogateescape"))
    return keys


def require_key(
    key: str | None, handler: Handler, read: Callable[[web.Request], list[str]] = read_platform_keys
) -> Handler:
    """Answer 401 to requests unless ``read`` finds the key among theirs; None requires no key."""
    if key is None:
        return handler
    expected = _to_bytes(key)

    async def check_key(request: web.Request) -> web.StreamResponse:
        if not any(hmac.compare_digest(_to_bytes(sent), expected) for sent in read(request)):
            raise web.HTTPUnauthorized(text="the API key is missing or wrong")
        return await handler(request)

    return check_key


def _to_bytes(text: str) -> bytes:
    # A header may have bytes that are not valid text.
    return text.encode(errors="surrogateescape")
