"""Connection resets, frozen workers, and a port for workers that can have outages."""

import asyncio
import signal
import socket
import struct

from aiohttp import web

from emulator.job_queue import Worker


def is_closed_by_peer(transport: asyncio.BaseTransport) -> bool:
    """Return whether the connection is closed, even if the event loop doesn't know this yet."""
    if transport.is_closing():
        return True
    # The transport's own socket can't be read from, but a duplicate of it can.
    with transport.get_extra_info("socket").dup() as connection:
        try:
            return not connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


def reset_connection(transport: asyncio.BaseTransport | None) -> None:
    """Reset a connection unless it is already closing, so that its peer sees an error."""
    if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


def freeze_worker(worker: Worker, seconds: float) -> None:
    """Pause all of a worker's processes for some seconds with SIGSTOP, and reset its connections.

    Its jobs stay in progress. If the worker is already frozen, the time starts again.

    Raises:
        ProcessLookupError: The emulator has no process of this worker.
    """
    if worker.process is None:
        raise ProcessLookupError(f"{worker.id} is not a worker of this endpoint")
    worker.frozen = True  # before the signal, so that requests that just arrived are reset
    worker.process.send_signal(signal.SIGSTOP)
    for transport in list(worker.connections):
        reset_connection(transport)
    if worker.thaw_timer is not None:
        worker.thaw_timer.cancel()
    worker.thaw_timer = asyncio.get_running_loop().call_later(seconds, thaw_worker, worker)


def thaw_worker(worker: Worker) -> None:
    if worker.thaw_timer is not None:
        worker.thaw_timer.cancel()
    if worker.frozen:
        worker.frozen = False
        if worker.process is not None:
            worker.process.send_signal(signal.SIGCONT)
        worker.changed.notify_all()


class WorkerPort:
    """The port for workers, separate from the port for callers: an outage affects workers only."""

    def __init__(self, host: str, port: int) -> None:
        self.port = port
        self._host = host
        self._runner: web.AppRunner | None = None
        self._site: web.SockSite | None = None
        self._reopen_task: asyncio.Task[None] | None = None

    @property
    def is_refusing_connections(self) -> bool:
        return self._site is None

    async def start(self, runner: web.AppRunner) -> None:
        """Start listening with a runner that is already set up, and serves this port only."""
        self._runner = runner
        bound_socket = _bind_socket(self._host, self.port)
        self.port = bound_socket.getsockname()[1]
        await self._listen(bound_socket)

    async def begin_outage(self, seconds: float) -> None:
        """Reset all connections, and refuse new ones for some seconds.

        Raises:
            RuntimeError: An outage is already in progress.
        """
        site, self._site = self._site, None
        if site is None or self._runner is None or self._runner.server is None:
            raise RuntimeError("workers are already refused")
        await site.stop()
        # The socket is bound immediately but doesn't listen: connections are refused, and no other
        # process gets the port.
        bound_socket = _bind_socket(self._host, self.port)
        for connection in self._runner.server.connections:
            reset_connection(connection.transport)
        self._reopen_task = asyncio.create_task(self._listen_after_outage(seconds, bound_socket))

    async def cancel_outage(self) -> None:
        """Cancel an outage in progress for a shutdown: the port stays closed."""
        if self._reopen_task is not None:
            self._reopen_task.cancel()
            await asyncio.wait([self._reopen_task])

    async def _listen_after_outage(self, seconds: float, bound_socket: socket.socket) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            bound_socket.close()
            raise
        await self._listen(bound_socket)

    async def _listen(self, bound_socket: socket.socket) -> None:
        assert self._runner is not None
        site = web.SockSite(self._runner, bound_socket)
        await site.start()
        self._site = site


def _bind_socket(host: str, port: int) -> socket.socket:
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound_socket = socket.socket(family, kind)
    try:
        # Closed connections of this port may still be in TIME_WAIT.
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
    except OSError:
        bound_socket.close()
        raise
    return bound_socket
