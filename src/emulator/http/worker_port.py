"""Connections that break, workers that freeze, and a port for them that refuses for a while."""

import asyncio
import signal
import socket
import struct

from aiohttp import web

from emulator.state.worker import Worker


def is_closed(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether the peer has closed the connection, though the event loop may not know yet."""
    if transport is None or transport.is_closing():
        return True
    with transport.get_extra_info("socket").dup() as connection:
        try:
            return not connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Reset a connection, unless it is closed already: its peer sees no orderly end."""
    if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def freeze(worker: Worker, seconds: float) -> None:
    """Stop all of a worker's processes for so many seconds, and reset its connections.

    Its jobs stay in progress. While it is frozen already, the time begins anew.

    Raises:
        ProcessLookupError: the emulator has no process of this worker.
    """
    if worker.process is None:
        raise ProcessLookupError(f"{worker.id} is not run by this endpoint")
    worker.frozen = True  # before the signal: what has just arrived is not answered any more
    worker.process.signal(signal.SIGSTOP)
    for transport in list(worker.connections):
        reset(transport)
    if worker.thaw_timer is not None:
        worker.thaw_timer.cancel()
    worker.thaw_timer = asyncio.get_running_loop().call_later(seconds, thaw, worker)


def thaw(worker: Worker) -> None:
    """Let a frozen worker go on; has no effect on another."""
    if worker.thaw_timer is not None:
        worker.thaw_timer.cancel()
    if worker.frozen:
        worker.frozen = False
        if worker.process is not None:
            worker.process.signal(signal.SIGCONT)
        worker.changed.notify_all()


class WorkerPort:
    """A port of its own: an outage for workers is none for callers.

    Args:
        host: to bind.
        port: to bind; 0: any free one.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = port
        self._host = host
        self._runner: web.AppRunner | None = None
        self._site: web.SockSite | None = None
        self._reopening: asyncio.Task[None] | None = None

    @property
    def refuses(self) -> bool:
        return self._site is None

    async def start(self, runner: web.AppRunner) -> None:
        """Listen.

        Args:
            runner: it is set up already, and serves this port only.

        Raises:
            OSError: the port is taken.
        """
        self._runner = runner
        bound = _bind(self._host, self.port)
        self.port = bound.getsockname()[1]
        await self._listen(bound)

    async def refuse(self, seconds: float) -> None:
        """Reset all connections, and refuse new ones for so many seconds from now on.

        Raises:
            RuntimeError: they are refused already.
        """
        site, self._site = self._site, None
        if site is None or self._runner is None or self._runner.server is None:
            raise RuntimeError("workers are refused already")
        await site.stop()
        # Bound at once and not listening: connections are refused, and nobody else gets the port.
        bound = _bind(self._host, self.port)
        for connection in self._runner.server.connections:
            reset(connection.transport)
        self._reopening = asyncio.create_task(self._listen_after(seconds, bound))

    async def stop(self) -> None:
        """End an outage that lasts, without listening again."""
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])

    async def _listen_after(self, seconds: float, bound: socket.socket) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            bound.close()
            raise
        await self._listen(bound)

    async def _listen(self, bound: socket.socket) -> None:
        assert self._runner is not None
        site = web.SockSite(self._runner, bound)
        await site.start()
        self._site = site


def _bind(host: str, port: int) -> socket.socket:
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind)
    try:
        # Closed connections of the port may still be waiting for their end.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
