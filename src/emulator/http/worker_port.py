"""The port for workers, which can refuse them for a while."""

import asyncio
import socket

from aiohttp import web

from emulator.http.connections import reset


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
