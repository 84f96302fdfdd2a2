"""Opens the ports of ``--serve`` immediately, long before the worker is ready.

A child process, ``startup_server``, owns the sockets during startup: a core that is forked then
must not inherit them, or a port would stay open after the worker has exited.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from worker.children import Child, script_command
from worker.errors import EngineBusy, MachineUnfit, StartFailed
from worker.serve import startup_server
from worker.settings.mistakes import Mistake, SettingsError

# Hosts that only programs of this machine reach.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEFAULT_PORT = 8000
HIGHEST_PORT = 65_535
# Seconds that the child process has to hand over the sockets.
HAND_OVER_TIMEOUT_S = 30.0

_BODY = json.dumps(
    EngineBusy("The worker is starting. Send the request again in a few seconds.").body()
)


@dataclass(frozen=True)
class Ports:
    """The ports to listen on; ``health`` is an optional port for ``/ping`` only."""

    main: int
    health: int | None = None

    @classmethod
    def choose(cls, port: int | None, environ: Mapping[str, str]) -> Self:
        """Choose the main port, ``port``, PORT or the default, and the health port, PORT_HEALTH."""
        main = _port_from_variable("PORT", environ) if port is None else port
        health = _port_from_variable("PORT_HEALTH", environ)
        main = DEFAULT_PORT if main is None else main
        return cls(main, None if health == main else health)


def check_console_access(host: str, values: Mapping[str, str]) -> None:
    """Check that only this machine, or callers with a key, can use the console."""
    if host not in LOOPBACK and not values.get("SERVE_API_KEY"):
        raise StartFailed(
            f"--console on {host} would let every machine that reaches the port use this worker: "
            f"set SERVE_API_KEY, or leave out --host to serve {LOOPBACK[0]} only"
        )


def _port_from_variable(name: str, environ: Mapping[str, str]) -> int | None:
    value = environ.get(name, "").strip()
    if not value:
        return None
    if not value.isdecimal() or int(value) > HIGHEST_PORT:
        raise SettingsError([Mistake(name, value, f"a port, 0 to {HIGHEST_PORT}", "80")])
    return int(value)


class StartupListener:
    """Listens on the ports; a child process answers there until ``take_sockets`` is called."""

    def __init__(self, host: str, ports: Ports) -> None:
        numbers = [ports.main, *([] if ports.health is None else [ports.health])]
        sockets = [_open_port(host, number) for number in numbers]
        self._control, child_control = socket.socketpair()
        passed = [child_control.fileno(), *(one.fileno() for one in sockets)]
        control, *fds = map(str, passed)
        command = script_command(startup_server.__file__, control, _BODY, *fds)
        self.child = Child(command, pass_fds=passed)
        self._count = len(sockets)
        for one in (child_control, *sockets):
            one.close()

    def take_sockets(self) -> list[socket.socket]:
        """Return the sockets, the health port's last; waiting connections are not lost."""
        fds: list[int] = []
        self._control.settimeout(HAND_OVER_TIMEOUT_S)
        # If the child process has exited, sending fails or nothing is received.
        with contextlib.suppress(OSError):
            self._control.send(b".")
            _, fds, _, _ = socket.recv_fds(self._control, 1, self._count)
        self._control.close()
        if len(fds) < self._count:
            self.child.kill()
            raise MachineUnfit(
                "The process that held the ports of --serve during the start was ended from "
                "outside, or has stopped, and the ports went with it: start the worker again"
            )
        # The child process exits after it has answered the connections that it has accepted. A
        # thread is allowed now, after the core has been forked.
        threading.Thread(target=self.child.wait, daemon=True).start()
        return [socket.socket(fileno=fd) for fd in fds]

    def close(self) -> None:
        """Close the ports unless ``take_sockets`` was called, so that no client waits there."""
        self._control.close()
        self.child.wait()


def _open_port(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=startup_server.BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartFailed(
            f"{host} port {port} can't be opened: {reason}. Set --port (or PORT), or --host, to "
            "one that is free"
        ) from error
