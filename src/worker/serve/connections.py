"""Connections: how many there may be, and how long their clients may take."""

import asyncio
import json
import socket
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from worker.errors import EngineBusy
from worker.serve.starting import LARGEST_HEAD, refusal

_FULL = json.dumps(EngineBusy("The server has as many connections as it can hold.").body())
# Before a request is read there is nothing that could answer it.
_REFUSAL = refusal(_FULL.encode(), 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of each port: how many connections; of each: seconds for what its client has to do."""

    connections: int
    patience_s: float


class Port:
    """The connections of a port: the open ones, and those that wait for a request in this order."""

    def __init__(self) -> None:
        self.open = set[Connection]()
        self.waiting = dict[Connection, None]()


class Connection(H11Protocol):
    """A connection that ends when its client is too slow, where uvicorn would wait for ever.

    The time counts for the head of a request, with the rest of a body that nobody wants; and for
    reading, whenever the client has left so much unread that no more is written.

    Who asks for nothing keeps nobody out: where a port is full, a new connection takes the place of
    the one that has waited longest for a request. There is no bound for each peer, because behind
    the platform's proxy all clients are one.
    """

    def __init__(self, limits: Limits, ports: defaultdict[Any, Port], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._ports = ports
        self._asking: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            # The kernel's part of it: what is written at the end is read in that time, too.
            patience_ms = int(self._limits.patience_s * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        self._port = self._ports[self.server and self.server[1]]
        self._port.open.add(self)
        self._watch_asking()
        self._watch_waiting()
        if len(self._port.open) > self._limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()
        for timer in (self._asking, self._reading):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        # The parser bounds only heads that are not complete when it looks.
        step = len(data) if self._is_answering() else LARGEST_HEAD // 2
        for start in range(0, len(data), step):
            if not self.transport.is_closing():
                super().data_received(data[start : start + step])
        self._watch_asking()
        self._watch_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self._soon_lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _make_room(self) -> None:
        """Close the connection that has waited longest, or refuse this one if no other waits."""
        oldest = next(iter(self._port.waiting))
        oldest._leave()
        if oldest is self:
            self.transport.write(_REFUSAL)
        oldest.transport.close()

    def _leave(self) -> None:
        self._port.open.discard(self)
        self._port.waiting.pop(self, None)

    def _watch_waiting(self) -> None:
        if self._is_answering():
            self._port.waiting.pop(self, None)
        elif self in self._port.open:
            self._port.waiting.setdefault(self)

    def _watch_asking(self) -> None:
        """Count the time from the first byte of a request, until its head is complete."""
        if self._is_answering():
            if self._asking is not None:
                self._asking.cancel()
                self._asking = None
        elif self._asking is None:
            self._asking = self._soon_lost()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _soon_lost(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._limits.patience_s, self.transport.abort)
