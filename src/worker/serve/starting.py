"""Answers HTTP while the worker starts, in a process of its own. Runs as a script.

A start imports for seconds without letting other threads run, and must have none before its core is
forked. So this is a process; it imports nothing but the standard library, to begin at once.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence

# Connections that wait in the kernel: also those that come between two servers.
BACKLOG = 2048
# Bytes of a request's head.
LARGEST_HEAD = 32_768
# Seconds that a client has to send a head, and to read its answer.
PATIENCE_S = 5.0
# Turns of the loop within which a connection that it has accepted is answered by a task.
TURNS = 10

_PING = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: %d\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
)


def refusal(body: bytes, retry_after_s: int) -> bytes:
    """Return a whole answer of 503, with JSON."""
    return _REFUSAL % (retry_after_s, len(body), body)


class Starting:
    """Answers until its listeners are asked for: 204 to pings, the rest with 503."""

    def __init__(self, body: bytes) -> None:
        self._refusal = refusal(body, 5)
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self, control: socket.socket, listeners: Sequence[socket.socket]) -> None:
        """Answer until a byte comes on the control, then send the listeners back on it.

        At the end of the control nobody wants them.
        """
        # A server closes what it has listened to.
        kept = [listener.dup() for listener in listeners]
        servers = [
            await asyncio.start_server(
                self._accepted, sock=listener, limit=LARGEST_HEAD, backlog=BACKLOG
            )
            for listener in listeners
        ]
        control.setblocking(False)
        asked = await asyncio.get_running_loop().sock_recv(control, 1)
        for server in servers:
            server.close()
        if asked:
            socket.send_fds(control, [b"."], [listener.fileno() for listener in kept])
            for listener in kept:
                listener.close()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            while self._answering:
                await asyncio.wait(self._answering)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unread = (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)
        with contextlib.suppress(*unread):
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b""]
                pings = method in (b"GET", b"HEAD") and path.partition(b"?")[0] == b"/ping"
                writer.write(_PING if pings else self._refusal)
                writer.write_eof()
                # Closed at once, a body that is on its way would reset the connection.
                while await reader.read(LARGEST_HEAD):
                    pass
        writer.close()


if __name__ == "__main__":
    _control, _body, *_listeners = sys.argv[1:]
    _sockets = [socket.socket(fileno=int(number)) for number in (_control, *_listeners)]
    asyncio.run(Starting(_body.encode()).run(_sockets[0], _sockets[1:]))
