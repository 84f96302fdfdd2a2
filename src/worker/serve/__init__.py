"""The OpenAI path over plain HTTP, without a platform: every request is a job."""

import logging
from functools import partial

import uvicorn

from worker.engine import Engines
from worker.serve.connections import LARGEST_HEAD, Connection, Limits
from worker.serve.service import Service
from worker.settings import Settings

log = logging.getLogger(__name__)

# Seconds that running requests have to end after a signal to stop.
GRACE_S = 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def server(engines: Engines, settings: Settings, host: str, port: int) -> uvicorn.Server:
    """Return a server that has not started; its port opens when it runs.

    It never has to answer that it is starting: the engine is ready before a loop can run, since it
    is forked before any thread exists.
    """
    if host not in LOOPBACK and settings.serve_api_key is None:
        log.warning("anyone who reaches this port is answered: set SERVE_API_KEY to ask for a key")
    limits = Limits(settings.serve_max_connections, settings.serve_timeout_s)
    config = uvicorn.Config(
        Service(engines, settings),
        host=host,
        port=port,
        # Made by uvicorn, once for each connection.
        http=partial(Connection, limits),  # type: ignore[arg-type]  # a function does as well
        h11_max_incomplete_event_size=LARGEST_HEAD,
        lifespan="on",
        ws="none",
        # The worker's own handlers take uvicorn's log, too.
        log_config=None,
        log_level="info",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)
