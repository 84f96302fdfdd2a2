"""Connections that break, as those of a network or of a machine that is taken away."""

import asyncio
import socket
import struct


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
