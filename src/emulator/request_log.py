"""The request log: a line of JSON for each request."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

# Which fault on demand a request ran into.
FAULT = web.RequestKey("fault", str)

_CLIENT_CLOSED_REQUEST = 499


def logging_to(log: logging.Logger) -> Middleware:
    """A middleware that tells of each request once it is answered, or its caller hung up.

    (aiohttp's own access log leaves the latter out.)
    """

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        at, begun = time.time(), time.monotonic()
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
            return response
        finally:
            line = {
                "at": round(at, 6),  # Unix time of its arrival
                "method": request.method,
                "path": request.path_qs,
                "status": _CLIENT_CLOSED_REQUEST if response is None else response.status,
                "ms": round((time.monotonic() - begun) * 1000, 3),
                "bytes_in": request.content_length or 0,
                "bytes_out": 0 if response is None else _size(response),
            }
            if FAULT in request:
                line["fault"] = request[FAULT]
            log.info(json.dumps(line))

    return answer


def _size(response: web.StreamResponse) -> int:
    # Of a stream aiohttp knows only what was written, headers and all.
    return response.body_length if response.content_length is None else response.content_length


@contextmanager
def opened_log(path: Path) -> Iterator[logging.Logger]:
    """A logger that writes a file anew. It belongs to one emulator, so it is in no tree.

    Raises:
        OSError: the file can't be written.
    """
    path.open("a").close()
    # Emptied by the first request: not where the port is taken by whoever writes the file already.
    handler = logging.FileHandler(path, mode="w", encoding="utf-8", delay=True)
    logger = logging.Logger("emulator.requests")
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()
