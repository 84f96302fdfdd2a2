"""Connections to the proxy: how many there may be, and how long one may bring no request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds between two looks at a connection.
LOOK_S = 20.0
# Connections at once. With those to the platform they are less than a process may have open.
MOST = 500
# Bytes of a request's line and headers together.
LARGEST_HEAD = 32_768
# Seconds that running requests have to end after a signal to stop.
GRACE_S = 5


class Connection(H11Protocol):
    """A connection that ends when its client sends no request, where uvicorn would wait for ever.

    It ends at the second look that finds no request begun since the first, and none that runs: so
    does one whose client leaves the end of an answer unread.
    """

    _looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._looking is not None:
            self._looking.cancel()

    def _look(self, waited: bool, last: object) -> None:
        if waited and self._waits() and self.cycle is last:
            self.transport.abort()
        else:
            self._look_again()

    def _look_again(self) -> None:
        self._looking = self.loop.call_later(LOOK_S, self._look, self._waits(), self.cycle)

    def _waits(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


# Options of uvicorn.
SERVED: dict[str, Any] = {
    "http": Connection,
    "h11_max_incomplete_event_size": LARGEST_HEAD,
    "limit_concurrency": MOST,
    "timeout_graceful_shutdown": GRACE_S,
    "access_log": False,
    "lifespan": "on",
    "server_header": False,
    "ws": "none",
}
