"""Limits the number of connections, and the time that their clients may take."""

import asyncio
import json
import socket
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from worker.errors import EngineBusy
from worker.serve.startup_server import MAX_HEAD_BYTES, service_unavailable

_FULL = json.dumps(EngineBusy("The server has its maximum number of connections.").body())
# Before a request is parsed, no app can respond to it.
_REFUSAL = service_unavailable(_FULL.encode(), 1)

# Headers that contradict each other: a proxy may go by one of them, and this server by the other.
_LENGTH_HEADERS = {b"content-length", b"transfer-encoding"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum connections per port, and seconds for sending a head or for resuming to read."""

    connections: int
    timeout_s: float


class PortConnections:
    """The open connections of a port, and those waiting for a request, the longest wait first."""

    def __init__(self) -> None:
        self.open = set[HttpConnection]()
        self.waiting = dict[HttpConnection, None]()


class HttpConnection(H11Protocol):
    """A connection that is closed when its client is too slow; uvicorn would wait forever.

    The timeout applies to the head of a request, including the unread rest of the previous body,
    and to reading the response whenever unread data fills the buffer and writing pauses.

    Idle clients don't block others: if a port is full, a new connection replaces the one that has
    waited longest for a request, and is refused if no other waits. There is no limit per client
    address, because behind the platform's proxy all clients share one address.
    """

    def __init__(
        self, limits: ConnectionLimits, ports: defaultdict[Any, PortConnections], **options: Any
    ) -> None:
        super().__init__(**options)
        self._limits = limits
        self._ports = ports
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows the type, too
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            # The kernel's timeout covers data that is written just before the connection closes.
            timeout_ms = int(self._limits.timeout_s * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        self._port = self._ports[self.server and self.server[1]]
        self._port.open.add(self)
        self._update_head_timer()
        self._update_waiting_connections()
        if len(self._port.open) > self._limits.connections:
            oldest = next(iter(self._port.waiting))
            oldest._unregister()
            if oldest is self:
                self.transport.write(_REFUSAL)
            oldest.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unregister()
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        # Pass small steps: the parser limits only heads that are incomplete when it parses.
        step = len(data) if self._is_answering() else MAX_HEAD_BYTES // 2
        for start in range(0, len(data), step):
            if not self.transport.is_closing():
                super().data_received(data[start : start + step])
        self._update_head_timer()
        self._update_waiting_connections()

    def handle_events(self) -> None:
        last_request = self.cycle
        super().handle_events()
        if self.cycle is last_request:
            return
        # RFC 9112, 6.1: with both headers, the next bytes may be no request of this client. uvicorn
        # looks for the header when the app answers, which is after this call.
        if _LENGTH_HEADERS.issubset(name for name, _ in self.headers):
            self.headers.append(CLOSE_HEADER)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_waiting_connections()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self._start_abort_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _unregister(self) -> None:
        self._port.open.discard(self)
        self._port.waiting.pop(self, None)

    def _update_waiting_connections(self) -> None:
        if self._is_answering():
            self._port.waiting.pop(self, None)
        elif self in self._port.open:
            self._port.waiting.setdefault(self)

    def _update_head_timer(self) -> None:
        """Start a timer for a request's head if none runs; stop it while a request is answered."""
        if self._is_answering():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self._start_abort_timer()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_abort_timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._limits.timeout_s, self.transport.abort)
