"""Networks: names that a table resolves, addresses that must not be asked, connections cut off."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp.abc import AbstractResolver, ResolveResult

_BLOCK = 16 * 1024
# Closes with a reset: nothing that is on its way arrives.
_RESET = struct.pack("ii", 1, 0)


class Names(AbstractResolver):
    """Looks names up in a table; a name with several answers gives the next one every time."""

    def __init__(self, table: Mapping[str, list[list[str]]]) -> None:
        self.table = {name: list(answers) for name, answers in table.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
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
    """A server on the loopback interface that no request may reach: it notes the URLs of all."""

    port: int
    hits: list[str]


class Cutting:
    """Passes connections on to a port of this machine, counts bytes, and cuts connections off.

    Args:
        port: of the server.
        cuts: after how many bytes from clients, or to them, the next connection is cut.
        held_at: after how many bytes nothing more is passed on; None: never.
    """

    def __init__(self, port: int, cuts: list[int], held_at: int | None = None) -> None:
        self._port = port
        self._cuts = sorted(cuts)
        self._held_at = held_at
        self.holds = threading.Event()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.up = self.down = self.cut = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def cut_at(self, cuts: list[int]) -> None:
        """Count from now on, for other cuts."""
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
        # Wakes the thread that accepts.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK):
                if self._counts_to_a_cut(len(block), up):
                    for end in (source, target):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
                if self._held_at is not None and max(self.up, self.down) >= self._held_at:
                    self.holds.set()
                    continue
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _counts_to_a_cut(self, size: int, up: bool) -> bool:
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
def cutting(
    port: int, cuts: list[int] | None = None, held_at: int | None = None
) -> Iterator[Cutting]:
    """Open such a network; leaving closes it."""
    between = Cutting(port, cuts or [], held_at)
    thread = threading.Thread(target=between.serve, daemon=True)
    thread.start()
    try:
        yield between
    finally:
        between.close()
        thread.join()
