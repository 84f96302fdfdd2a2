"""Ends a start that does not move (``START_STALL_S``).

``watcher`` does the watching, a process of its own: a start has no thread before its core is
forked, and a thread would wait with everybody else for code in C that keeps the interpreter's lock.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from worker import phases, with_parent
from worker.settings import Settings
from worker.stalls import watcher

SETTING = "START_STALL_S"


class Watch:
    """Watches this process from now on, and all that it starts, until it is ended.

    Args:
        patience_s: seconds without a movement that are too many.
    """

    def __init__(self, patience_s: float) -> None:
        self._before = signal.getsignal(watcher.STOP)
        end_on_signal()
        self._control, theirs = socket.socketpair()
        # Without site-packages it starts in 20 ms.
        words = [str(theirs.fileno()), str(os.getpid()), str(patience_s)]
        self._child = subprocess.Popen(
            with_parent.command(sys.executable, "-I", "-S", watcher.__file__, *words),
            pass_fds=[theirs.fileno()],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        phases.listeners.append(self._tell)

    def end(self) -> None:
        """End the watch: the start is over."""
        phases.listeners.remove(self._tell)
        # It holds nothing, and an interpreter that ends by itself takes ten times as long.
        self._child.kill()
        self._child.wait()
        self._control.close()
        faulthandler.unregister(watcher.STOP)
        signal.signal(watcher.STOP, self._before)

    def _tell(self, phase: str) -> None:
        # A watcher that was killed from outside is no reason to end a start.
        with contextlib.suppress(OSError):
            self._control.send(f"{phase}\n".encode())


_watches: list[Watch] = []


def begin(values: Mapping[str, str]) -> None:
    """Begin to watch, unless START_STALL_S is 0.

    Args:
        values: the settings as text. One that can't be read is told by the start itself.
    """
    patience_s: float = Settings.model_fields[SETTING.lower()].default
    with contextlib.suppress(ValueError):
        patience_s = float(values.get(SETTING) or patience_s)
    if patience_s > 0:
        _watches.append(Watch(patience_s))


def end() -> None:
    """End the watch, if there is one."""
    while _watches:
        _watches.pop().end()


def end_on_signal() -> None:
    """Let this process and its forks print their stacks and end, when the watcher's signal comes.

    Both happen in C, in the signal's handler: also where no code of Python runs any more. The first
    process of a container ignores what it handles not, SIGKILL among it.
    """
    if signal.getsignal(watcher.STOP) is signal.SIG_IGN:
        # As nohup has it: the worker is to outlive its terminal. The watcher kills it.
        return
    libc = ctypes.CDLL(None)
    # It is called with the signal's number, which becomes the status: that of SIGHUP is 1.
    libc.signal(watcher.STOP, libc._exit)
    faulthandler.register(watcher.STOP, file=2, all_threads=True, chain=True)
