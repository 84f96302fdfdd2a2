"""Networks for tests: a resolver with a table of names, and a proxy that cuts connections off."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp.abc import AbstractResolver, ResolveResult

_BLOCK = 16 * 1024
# Closes a connection with a reset: data that is still on its way is lost.
_RESET = struct.pack("ii", 1, 0)


class TableResolver(AbstractResolver):
    """Resolves names by a table; a name with several answers returns the next one at each query."""

    def __init__(self, table: Mapping[str, list[list[str]]]) -> None:
        self.table = {name: list(answers) for name, answers in table.items()}
        self.queried_names: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.queried_names.append(host)
        answers = self.table.get(host.lower().removesuffix("."))
        if not answers:
            raise OSError("no such name")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer
        ]

    async def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class LocalServer:
    """A server on loopback that no request may reach; it records the URLs of requests."""

    port: int
    hits: list[str]


class CuttingProxy:
    """Forwards connections to a local port, counts bytes, and cuts connections off.

    Args:
        port: Port of the server.
        cuts: Numbers of bytes, in one direction, after which the current connection is cut off.
        stall_after: Number of bytes after which nothing more is forwarded; None for no limit.
    """

    def __init__(self, port: int, cuts: list[int], stall_after: int | None = None) -> None:
        self._port = port
        self._cuts = sorted(cuts)
        self._held_at = stall_after
        self.stalled = threading.Event()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.up = self.down = self.cut = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def reset_counts(self, cuts: list[int]) -> None:
        """Reset the counts of bytes, and set other numbers of bytes for cuts."""
        with self._lock:
            self._cuts = sorted(cuts)
            self.up = self.down = self.cut = 0

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for pair, up in (((client, server), True), ((server, client), False)):
                    threading.Thread(target=self._pass_on, args=(*pair, up), daemon=True).start()

    def close(self) -> None:
        # Wakes the thread that accepts connections.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK):
                if self._count_and_check_cut(len(block), up):
                    for end in (source, target):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
                if self._held_at is not None and max(self.up, self.down) >= self._held_at:
                    self.stalled.set()
                    continue
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _count_and_check_cut(self, size: int, up: bool) -> bool:
        with self._lock:
            if up:
                self.up += size
            else:
                self.down += size
            if self._cuts and max(self.up, self.down) >= self._cuts[0]:
                del self._cuts[0]
                self.cut += 1
                return True
            return False


@contextmanager
def cutting_proxy(
    port: int, cuts: list[int] | None = None, stall_after: int | None = None
) -> Iterator[CuttingProxy]:
    """Run a proxy that cuts connections off; close it at the end of the block."""
    between = CuttingProxy(port, cuts or [], stall_after)
    thread = threading.Thread(target=between.serve, daemon=True)
    thread.start()
    try:
        yield between
    finally:
        between.close()
        thread.join()
