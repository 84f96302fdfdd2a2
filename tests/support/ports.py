"""Ports for processes that are told their number."""

import socket
from random import SystemRandom

# Outside of those that the kernel gives to connections, which could take a port between the choice
# and its use.
PORTS = range(10_000, 32_000)


def free_port() -> int:
    """Return a port that nobody has."""
    # Other test processes may choose at the same time.
    for port in SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("all ports are taken")
