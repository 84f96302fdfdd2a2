"""Answers HTTP requests while the worker starts; runs as a script in a child process.

A thread would be blocked for seconds by the startup's imports, and no thread may exist before the
core is forked. The script imports only the standard library, to start quickly.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence

# Maximum number of connections that wait in the kernel, also while the sockets are handed over.
BACKLOG = 2048
# Maximum number of bytes of a request's head.
MAX_HEAD_BYTES = 32_768
# Seconds in total that a client has to send a head and to read the response.
CLIENT_TIMEOUT_S = 5.0
# Iterations of the event loop within which an accepted connection gets a task that answers it.
ACCEPT_TURNS = 10

_PING = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: %d\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
)


def service_unavailable(body: bytes, retry_after_s: int) -> bytes:
    return _REFUSAL % (retry_after_s, len(body), body)


class StartupServer:
    """Answers pings with 204 and other requests with 503, until its sockets are requested."""

    def __init__(self, body: bytes) -> None:
        self._refusal = service_unavailable(body, 5)
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self, control: socket.socket, listeners: Sequence[socket.socket]) -> None:
        """Answer requests until a byte arrives on ``control``, then send the listeners on it.

        If ``control`` is closed instead, exit without sending them.
        """
        # An asyncio server closes the sockets on which it has listened.
        duplicates = [listener.dup() for listener in listeners]
        servers = [
            await asyncio.start_server(
                self._start_answer, sock=listener, limit=MAX_HEAD_BYTES, backlog=BACKLOG
            )
            for listener in listeners
        ]
        control.setblocking(False)
        hand_over = await asyncio.get_running_loop().sock_recv(control, 1)
        for server in servers:
            server.close()
        if hand_over:
            socket.send_fds(control, [b"."], [listener.fileno() for listener in duplicates])
            for listener in duplicates:
                listener.close()
            for _ in range(ACCEPT_TURNS):
                await asyncio.sleep(0)
            while self._answering:
                await asyncio.wait(self._answering)

    def _start_answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        errors = (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)
        with contextlib.suppress(*errors):
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b""]
                is_ping = method in (b"GET", b"HEAD") and path.partition(b"?")[0] == b"/ping"
                writer.write(_PING if is_ping else self._refusal)
                writer.write_eof()
                # Closing immediately, with unread data of a body, would reset the connection.
                while await reader.read(MAX_HEAD_BYTES):
                    pass
        writer.close()


if __name__ == "__main__":
    _control, _body, *_listeners = sys.argv[1:]
    _sockets = [socket.socket(fileno=int(number)) for number in (_control, *_listeners)]
    asyncio.run(StartupServer(_body.encode()).run(_sockets[0], _sockets[1:]))
