"""The request log: a line of JSON for each request."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.web_request import BaseRequest

# Which fault on demand a request ran into.
FAULT = web.RequestKey("fault", str)


class RequestLog(AbstractAccessLogger):
    """Writes what aiohttp tells of each request once it is answered."""

    def log(self, request: BaseRequest, response: web.StreamResponse, time: float) -> None:
        line = {
            "at": round(_now() - time, 6),  # Unix time of its arrival
            "method": request.method,
            "path": request.path_qs,
            "status": response.status,
            "ms": round(time * 1000, 3),
            "bytes_in": request.content_length or 0,
            "bytes_out": response.body_length,  # aiohttp counts the headers too
        }
        if FAULT in request:
            line["fault"] = request[FAULT]
        self.logger.info(json.dumps(line))


def _now() -> float:
    # A name of its own: aiohttp calls the parameter above `time`.
    return time.time()


@contextmanager
def opened_log(path: Path) -> Iterator[logging.Logger]:
    """A logger that writes a file anew. It belongs to one emulator, so it is in no tree."""
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    logger = logging.Logger("emulator.requests")
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()
