"""The ports of ``--serve``: open from the first second, though the worker is far from ready.

Another process, ``starting``, holds them until then: a core that is forked meanwhile must not
inherit them, or a port would stay open after the end of the worker.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from worker.children import Child, script
from worker.errors import EngineBusy, MachineUnfit, StartFailed
from worker.serve import starting
from worker.settings.mistakes import Mistake, SettingsError

DEFAULT_PORT = 8000
HIGHEST_PORT = 65_535
# Seconds for the process that holds the ports to hand them over.
HAND_OVER_S = 30.0

_BODY = json.dumps(
    EngineBusy("The worker is starting. Send the request again in some seconds.").body()
)


@dataclass(frozen=True)
class Ports:
    """Where to listen; ``health`` is a port for ``/ping`` alone, None if there is none."""

    main: int
    health: int | None = None

    @classmethod
    def of(cls, named: int | None, environ: Mapping[str, str]) -> Self:
        """Return the ports of the command line, or else of the platform's variables.

        Raises:
            SettingsError: a variable is no port.
        """
        main = _port("PORT", environ) if named is None else named
        health = _port("PORT_HEALTH", environ)
        main = DEFAULT_PORT if main is None else main
        return cls(main, None if health == main else health)


def _port(name: str, environ: Mapping[str, str]) -> int | None:
    value = environ.get(name, "").strip()
    if not value:
        return None
    if not value.isdecimal() or int(value) > HIGHEST_PORT:
        raise SettingsError([Mistake(name, value, f"a port, 0 to {HIGHEST_PORT}", "80")])
    return int(value)


class Listener:
    """Ports that are open, and answered by another process until they are taken.

    Raises:
        StartFailed: a port can't be opened.
    """

    def __init__(self, host: str, ports: Ports) -> None:
        numbers = [ports.main, *([] if ports.health is None else [ports.health])]
        opened = [_open(host, number) for number in numbers]
        self._control, theirs = socket.socketpair()
        passed = [theirs.fileno(), *(one.fileno() for one in opened)]
        control, *fds = map(str, passed)
        command = script(starting.__file__, control, _BODY, *fds)
        self.holder = Child(command, pass_fds=passed)
        self._count = len(opened)
        for one in (theirs, *opened):
            one.close()

    def take(self) -> list[socket.socket]:
        """Return the sockets, the health port's last; connections that wait are not lost.

        Raises:
            MachineUnfit: the process that holds them has ended, or does not answer.
        """
        fds: list[int] = []
        self._control.settimeout(HAND_OVER_S)
        # At its end nothing can be sent to it, or nothing comes back.
        with contextlib.suppress(OSError):
            self._control.send(b".")
            _, fds, _, _ = socket.recv_fds(self._control, 1, self._count)
        self._control.close()
        if len(fds) < self._count:
            self.holder.kill()
            raise MachineUnfit(
                "The process that held the ports of --serve during the start was ended from "
                "outside, or has stopped, and the ports went with it: start the worker again"
            )
        # It answers whom it has accepted; by now threads are allowed.
        threading.Thread(target=self.holder.wait, daemon=True).start()
        return [socket.socket(fileno=fd) for fd in fds]

    def close(self) -> None:
        """Close the ports at once, unless they were taken: nobody is to wait for the worker."""
        self._control.close()
        self.holder.wait()


def _open(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=starting.BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartFailed(
            f"{host} port {port} can't be opened: {reason}. Set --port (or PORT), or --host, to "
            "one that is free"
        ) from error
