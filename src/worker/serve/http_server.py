"""Runs the HTTP server of a worker, or of one that failed to start, behind filters for callers."""

import asyncio
import contextlib
import json
import logging
import math
import signal
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from socket import socket
from typing import Literal, NoReturn

import uvicorn
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_worker_console import make_page
from llm_worker_console.web_pages import PageRefusal, find_page_refusal
from worker.engine import Engines
from worker.errors import Forbidden, StartFailed
from worker.failed_start import MAX_LIFETIME_S
from worker.serve.connections import ConnectionLimits, HttpConnection, PortConnections
from worker.serve.listener import LOOPBACK
from worker.serve.service import METHODS, PING, FailedStartApp, WorkerApp, error_response
from worker.serve.startup_server import MAX_HEAD_BYTES
from worker.settings import Settings
from worker.settings.values import parse_list

log = logging.getLogger(__name__)

# Seconds for sending errors after a stop signal, once running requests have had time to finish.
FAILURE_GRACE_S = 5
# Response headers that pages of other origins may read, in addition to those always allowed.
EXPOSED_HEADERS = ("content-disposition", "content-range", "retry-after", "x-request-id")
# Maximum characters of a request's path in the log.
MAX_LOGGED_PATH = 512
_PAGE_REFUSALS = {
    PageRefusal.FOREIGN_HOST: (
        "The Host header does not name this machine. On a loopback address the worker serves IP "
        "addresses and local names: add https://<name> to ALLOWED_ORIGINS to serve another name, "
        "or set SERVE_API_KEY and another --host."
    ),
    PageRefusal.FOREIGN_PAGE: (
        "Web pages may not call this worker: ALLOWED_ORIGINS lists the origins of those that may."
    ),
}

ExitProcess = Callable[[int], NoReturn]


class GracefulServer(uvicorn.Server):
    """A server that fails the requests that still run ``grace_s`` seconds after a stop signal."""

    def __init__(
        self, config: uvicorn.Config, grace_s: float, fail_requests: Callable[[], None]
    ) -> None:
        super().__init__(config)
        config.timeout_graceful_shutdown = math.ceil(grace_s) + FAILURE_GRACE_S
        self._grace_s = grace_s
        self._fail_requests = fail_requests

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._grace_s, self._fail_requests)
        await super().shutdown(sockets)
        timer.cancel()


class WebPageFilter:
    """An app that only programs of this machine and web pages of the allowed origins may call.

    Any page in a browser on this machine could otherwise call a local worker.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (
            refusal := find_page_refusal(Headers(scope=scope), self._allowed)
        ):
            app = error_response(Forbidden(_PAGE_REFUSALS[refusal]).body(str(uuid.uuid4())), scope)
        await app(scope, receive, send)


class HealthPortFilter:
    """An app that serves only /ping on the health port, and everything on the main port."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["server"][1] == self._port and scope["path"] != PING:
            await Response(status_code=404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class ConsoleApp:
    """An app that serves the console's page at ``/``, without a key, and passes on the rest."""

    def __init__(self, app: ASGIApp, *, needs_key: bool) -> None:
        page = make_page("worker", needs_key=needs_key)
        self._app = app
        self._response = Response(page.body, headers=page.headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and (scope["path"], scope["method"]) == ("/", "GET")
        await (self._response if is_page else self._app)(scope, receive, send)


def make_server(
    engines: Engines,
    settings: Settings,
    host: str,
    port: int,
    health: int | None = None,
    *,
    console: bool = False,
) -> uvicorn.Server:
    """Return an unstarted server of a worker, with an additional port for ``/ping`` if given.

    With ``console``, ``/`` is the console's page.
    """
    if host not in LOOPBACK and settings.serve_api_key is None:
        log.warning(
            "everyone who can reach this port is answered: set SERVE_API_KEY to require a key"
        )
    worker = WorkerApp(engines, settings)
    app: ASGIApp = worker
    if console:
        app = ConsoleApp(app, needs_key=settings.serve_api_key is not None)
    config = _make_config(app, settings, host, port, health, lifespan="on")
    return GracefulServer(config, settings.shutdown_grace_s, worker.fail_requests)


def serve(
    server: uvicorn.Server,
    sockets: Sequence[socket],
    exit_process: ExitProcess,
    watch: Callable[[Callable[[], int]], None],
) -> None:
    """Serve requests on the sockets of a ``StartupListener`` until a signal.

    ``watch`` runs in a thread and exits if an engine dies; its argument counts running requests.
    """
    _exit_on_signal(exit_process, 0)

    def count_requests() -> int:
        return len(server.server_state.tasks)

    threading.Thread(target=watch, args=(count_requests,), daemon=True).start()
    # Log the address, which uvicorn logs only for sockets that it has opened itself.
    host, port = server.config.host, server.config.port
    log.info("Uvicorn running on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    server.run(sockets=[*sockets])


def serve_failure(
    error: StartFailed,
    values: Mapping[str, str],
    host: str,
    sockets: Sequence[socket],
    exit_process: ExitProcess,
) -> None:
    """Answer every request with the error of a failed start, until a time limit or a signal.

    ``values`` are the settings as unparsed text, since they may be the cause of the failure.
    """
    server = make_refusing_server(error, values, host, *(one.getsockname()[1] for one in sockets))
    _exit_on_signal(exit_process, 1)
    timer = threading.Timer(MAX_LIFETIME_S, exit_process, [1])
    timer.daemon = True
    timer.start()
    server.run(sockets=[*sockets])


def _exit_on_signal(exit_process: ExitProcess, status: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # While the server runs, uvicorn's handlers give running requests a grace period. Then
        # uvicorn restores these handlers and raises the signal again.
        signal.signal(number, lambda *_: exit_process(status))


def make_refusing_server(
    error: StartFailed, values: Mapping[str, str], host: str, port: int, health: int | None = None
) -> uvicorn.Server:
    text = values.get("SERVE_API_KEY")
    key = SecretStr(text) if text else None
    # Any other setting may be the cause of the failure; so may ALLOWED_ORIGINS, if it is invalid.
    origins: Sequence[str] = ()
    with contextlib.suppress(json.JSONDecodeError):
        origins = parse_list(values.get("ALLOWED_ORIGINS") or "[]")
    settings = Settings.model_construct(serve_api_key=key, allowed_origins=origins)
    app = FailedStartApp(error, key)
    return uvicorn.Server(_make_config(app, settings, host, port, health, lifespan="off"))


def _make_config(
    app: ASGIApp,
    settings: Settings,
    host: str,
    port: int,
    health: int | None,
    lifespan: Literal["on", "off"],
) -> uvicorn.Config:
    """Return the configuration of an app's server, with the filters for ``host`` and the ports."""
    origins = settings.allowed_origins
    # On other hosts, clients use names of the server that the worker can't know or check.
    if host in LOOPBACK and "*" not in origins:
        app = WebPageFilter(app, origins)
    if origins:
        app = CORSMiddleware(
            app,
            origins,
            ("OPTIONS", *METHODS),
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
            max_age=3600,
        )
    if health is not None:
        app = HealthPortFilter(app, health)
    limits = ConnectionLimits(settings.serve_max_connections, settings.serve_timeout_s)
    logging.getLogger("uvicorn.access").addFilter(_hide_query)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        # uvicorn calls ``http`` for each connection.
        http=partial(HttpConnection, limits, defaultdict(PortConnections)),  # type: ignore[arg-type]  # a function works, too
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        # The worker's own handlers also process uvicorn's log.
        log_config=None,
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=FAILURE_GRACE_S,
        lifespan=lifespan,
    )


def _hide_query(record: logging.LogRecord) -> bool:
    """Log a request without its query, which may contain a signature that replaces the key."""
    if isinstance(record.args, tuple):
        client, method, address, *others = record.args
        path = str(address).partition("?")[0][:MAX_LOGGED_PATH]
        record.args = (client, method, path, *others)
    return True
