"""Runs the HTTP server: of a worker, or in place of one that can't start."""

import json
import logging
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from socket import socket
from typing import Literal, NoReturn

import uvicorn
from pydantic import SecretStr
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.engine import Engines
from worker.errors import StartFailed
from worker.failed_start import LONGEST_S
from worker.serve.connections import Connection, Limits, Port
from worker.serve.service import METHODS, PING, Refusal, Service
from worker.serve.starting import LARGEST_HEAD
from worker.serve.web_pages import WebPages
from worker.settings import Settings
from worker.settings.values import items

log = logging.getLogger(__name__)

# Seconds that running requests have to end after a signal to stop.
GRACE_S = 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# What pages of other origins may read, besides what they always may.
EXPOSED = ("content-disposition", "content-range", "retry-after", "x-request-id")

Leave = Callable[[int], NoReturn]


class HealthPort:
    """An app of which a second port serves /ping alone."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["server"][1] == self._port and scope["path"] != PING:
            await Response(status_code=404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def server(
    engines: Engines, settings: Settings, host: str, port: int, health: int | None = None
) -> uvicorn.Server:
    """Return a server that has not started; ``health`` is a further port, for ``/ping`` alone."""
    if host not in LOOPBACK and settings.serve_api_key is None:
        log.warning("anyone who reaches this port is answered: set SERVE_API_KEY to ask for a key")
    return _server(Service(engines, settings), settings, host, port, health, lifespan="on")


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an app that pages of these origins may call; none may, if none is named."""
    if not origins:
        return app
    methods = ("OPTIONS", *METHODS)
    headers = ["*"]
    return CORSMiddleware(
        app, origins, methods, allow_headers=headers, expose_headers=EXPOSED, max_age=3600
    )


def serve(
    engines: Engines,
    settings: Settings,
    host: str,
    sockets: Sequence[socket],
    leave: Leave,
    watch: Callable[[Callable[[], int]], None],
) -> None:
    """Answer requests on the sockets of a ``Listener`` at this host, until a signal.

    ``watch`` is called in a thread, with a function that counts the running requests.
    """
    ports = [one.getsockname()[1] for one in sockets]
    running = server(engines, settings, host, *ports)
    _leave_on_signal(leave, 0)

    def requests_left() -> int:
        return len(running.server_state.tasks)

    threading.Thread(target=watch, args=(requests_left,), daemon=True).start()
    # Uvicorn says so of sockets that it has opened itself.
    named = f"[{host}]" if ":" in host else host
    log.info("Uvicorn running on http://%s:%d", named, ports[0])
    running.run(sockets=[*sockets])


def refuse(
    error: StartFailed,
    values: Mapping[str, str],
    host: str,
    sockets: Sequence[socket],
    leave: Leave,
) -> None:
    """Answer every request with the reason of a failed start, for some time; as ``serve``.

    ``values`` are the settings as text, since they may be what is wrong.
    """
    running = refusing(error, values, host, *(one.getsockname()[1] for one in sockets))
    _leave_on_signal(leave, 1)
    timer = threading.Timer(LONGEST_S, leave, [1])
    timer.daemon = True
    timer.start()
    running.run(sockets=[*sockets])


def _leave_on_signal(leave: Leave, status: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # While the server runs it has handlers of its own: running requests have their grace. Then
        # it puts these back, and raises the signal again.
        signal.signal(number, lambda *_: leave(status))


def refusing(
    error: StartFailed, values: Mapping[str, str], host: str, port: int, health: int | None = None
) -> uvicorn.Server:
    """Return a server that has not started, and will refuse every request; as ``server``."""
    text = values.get("SERVE_API_KEY")
    key = SecretStr(text) if text else None
    # The defaults of all others, since any of them may be what is wrong.
    settings = Settings.model_construct(serve_api_key=key, allowed_origins=_origins(values))
    return _server(Refusal(error, key), settings, host, port, health, lifespan="off")


def _origins(values: Mapping[str, str]) -> Sequence[str]:
    """Return ALLOWED_ORIGINS; none where they can't be read, which may be why nothing starts."""
    text = values.get("ALLOWED_ORIGINS")
    try:
        return items(text) if text else ()
    except json.JSONDecodeError:
        return ()


def _server(
    app: ASGIApp,
    settings: Settings,
    host: str,
    port: int,
    health: int | None,
    lifespan: Literal["on", "off"],
) -> uvicorn.Server:
    """Return a server of an app, with what stands before it at this host and these ports."""
    key, origins = settings.serve_api_key, settings.allowed_origins
    # At other hosts it is reached by names that the worker does not know.
    if host in LOOPBACK and key is None and "*" not in origins:
        app = WebPages(app, origins)
    app = with_cors(app, origins)
    if health is not None:
        app = HealthPort(app, health)
    limits = Limits(settings.serve_max_connections, settings.serve_timeout_s)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        # Made by uvicorn, once for each connection.
        http=partial(Connection, limits, defaultdict(Port)),  # type: ignore[arg-type]  # a function does as well
        h11_max_incomplete_event_size=LARGEST_HEAD,
        ws="none",
        # The worker's own handlers take uvicorn's log, too.
        log_config=None,
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan=lifespan,
    )
    return uvicorn.Server(config)
