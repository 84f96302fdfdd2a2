"""Child processes of this process: how they are started and stopped.

By default, the kernel kills a child when its parent exits, whatever either of them is doing (see
``with_parent``). ``StopMode`` lists the variants. ``stop_descendants`` is for a process that is
about to exit.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from asyncio.subprocess import Process
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any

import psutil

from worker.children import with_parent
from worker.children.with_parent import exit_with_parent

_SOURCES = Path(__file__).parents[2]
# Options of the interpreter for a script: no site-packages, and no variables like PYTHONPATH.
ISOLATED = ["-I", "-S"]
# Seconds for the cleanup of a child before it is killed, and for the exit of a killed child.
GRACE_S = 5.0
# Signals that are usually sent to the whole process group; ``WAIT_FOR_WRITERS`` blocks them.
_GROUP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopMode(Enum):
    """How a child stops when its parent exits, and how ``stop_descendants`` stops it."""

    # SIGKILL stops the child, which needs no cleanup.
    KILL = auto()
    # SIGTERM stops the child: it has ``GRACE_S`` to release resources that others wait for.
    TERMINATE = auto()
    # The child reads the output of other processes from pipes, and exits when all of them have
    # exited, so that the last lines are not lost. Only SIGKILL stops it earlier, and
    # ``stop_descendants`` leaves it running.
    WAIT_FOR_WRITERS = auto()


# Children of this process with their stop modes, for ``stop_descendants``.
_children: "weakref.WeakSet[Child]" = weakref.WeakSet()


class Child(subprocess.Popen[bytes]):
    """A child process; ``stop_mode`` says how it stops when the thread that started it exits.

    ``environ`` is its complete environment, by default empty: most children must not know secrets.
    ``options`` are those of ``subprocess.Popen``; by default, standard input is empty.
    """

    def __init__(
        self,
        command: Sequence[str],
        stop_mode: StopMode = StopMode.KILL,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.stop_mode = stop_mode
        options = {"stdin": subprocess.DEVNULL, "env": environ or {}, **options}
        blocked = _GROUP_SIGNALS if stop_mode is StopMode.WAIT_FOR_WRITERS else ()
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            super().__init__(_with_parent_command(command, stop_mode), **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        _children.add(self)

    def stop(self) -> None:
        """Stop the child, and wait some seconds for its exit. Safe in a signal handler."""
        if self.stop_mode is StopMode.TERMINATE:
            self.terminate()
            self._wait_briefly()
        self.kill()
        self._wait_briefly()

    def _wait_briefly(self) -> None:
        # Never without a timeout: the code that a signal interrupts may hold a lock of ``Popen``.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(GRACE_S)


async def start_async(
    command: Sequence[str], environ: Mapping[str, str], **options: Any
) -> Process:
    """Start a child whose pipes are read on this event loop; it is killed when its parent exits.

    ``environ`` is its complete environment.
    """
    arguments = _with_parent_command(command, StopMode.KILL)
    return await asyncio.create_subprocess_exec(*arguments, env=environ, **options)


def script_command(file: str, *arguments: str | Path) -> list[str]:
    """Return the command for a file that imports only the standard library, and starts in 20 ms."""
    return [sys.executable, *ISOLATED, file, *map(str, arguments)]


def module_command(name: str, *arguments: str | Path) -> list[str]:
    """Return the command for a module in ``src``; its environment needs ``add_source_path``."""
    # -P: Python imports nothing from the current directory.
    return [sys.executable, "-P", "-m", name, *map(str, arguments)]


def add_source_path(environ: Mapping[str, str]) -> dict[str, str]:
    path = filter(None, [str(_SOURCES), environ.get("PYTHONPATH")])
    return {**environ, "PYTHONPATH": ":".join(path)}


def run_in_fork(function: Callable[[], object]) -> int:
    """Run a function in a fork, which is killed when this process exits; return its pid.

    Call this while the process has only one thread: a fork copies the locks of other threads.
    """
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        exit_with_parent(parent)
        function()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


@contextlib.contextmanager
def end_forks_with_parent() -> Iterator[None]:
    """Kill the forks that other code makes in this block when this process exits.

    The forks of these forks are not killed. Outside of the main thread, no forks are killed: the
    thread may exit before the process, and the kernel treats that as the exit of the parent.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    parents = [os.getpid()] if in_main_thread else []

    def end_with_parent() -> None:
        # The hook can't be removed, but it does nothing after the block.
        if parents:
            exit_with_parent(parents.pop())

    os.register_at_fork(after_in_child=end_with_parent)
    try:
        yield
    finally:
        parents.clear()


def stop_descendants(spared_children: Collection[subprocess.Popen[bytes]] = ()) -> None:
    """Stop all descendants of this process, also those of other code. Safe in a signal handler.

    ``spared_children`` are left running, in addition to ``WAIT_FOR_WRITERS``.
    """
    terminated = [child for child in tuple(_children) if child.stop_mode is StopMode.TERMINATE]
    for child in terminated:
        child.terminate()
    for child in terminated:
        child.stop()
    readers = [child for child in tuple(_children) if child.stop_mode is StopMode.WAIT_FOR_WRITERS]
    spared_pids = {child.pid for child in (*readers, *spared_children)}
    # The system is queried, because multiprocessing doesn't yet list a core that was just forked.
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid not in spared_pids:
                process.kill()


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it is a real-time signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _with_parent_command(command: Sequence[str], stop_mode: StopMode) -> list[str]:
    if stop_mode is StopMode.WAIT_FOR_WRITERS:
        return [*command]
    signal_number = signal.SIGTERM if stop_mode is StopMode.TERMINATE else signal.SIGKILL
    return script_command(with_parent.__file__, str(int(signal_number)), str(os.getpid()), *command)
