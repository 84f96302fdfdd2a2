"""The request log: one line of JSON per request."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

# The fault on demand that a request triggered.
FAULT = web.RequestKey("fault", str)

_CLIENT_CLOSED_REQUEST = 499


def log_requests(log: logging.Logger) -> Middleware:
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
                "status": _CLIENT_CLOSED_REQUEST if response is None else response.status,
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
def open_log(path: Path) -> Iterator[logging.Logger]:
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
