"""What every request to the local platform passes first."""

from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp.typedefs import Middleware

from emulator.http.request_log import log_requests, open_log
from emulator.http.web_pages import refuse_web_pages
from emulator.http.wire import json_errors


def middlewares(running: AsyncExitStack, request_log: Path | None) -> list[Middleware]:
    """Return the middlewares, with the log first if there is to be one.

    Args:
        running: closes the log.
        request_log: a new file.

    Raises:
        OSError: the log can't be written.
    """
    always: list[Middleware] = [json_errors, refuse_web_pages]
    if request_log is None:
        return always
    return [log_requests(running.enter_context(open_log(request_log))), *always]
