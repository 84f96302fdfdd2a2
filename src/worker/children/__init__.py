"""The processes that this one starts: how they are started, and how they end.

There is one rule: a child ends when its parent does, by a signal from the kernel (``with_parent``),
whatever either of them is doing. ``Ending`` has its variants. ``end_all`` ends the children of a
process that is about to end.
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
from worker.children.with_parent import end_with

_SOURCES = Path(__file__).parents[2]
# Options of the interpreter for a script: no site-packages, and nothing of the environment.
ISOLATED = ["-I", "-S"]
# Seconds that a child has to tidy up before it is killed, and a killed one to be gone.
# They are enough on a machine that is very busy, too.
GRACE_S = 5.0
# Signals that reach the whole process group.
_OF_THE_GROUP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Ending(Enum):
    """How a child ends with its parent, and by ``end_all``."""

    # By SIGKILL: it leaves nothing that has to be tidied up.
    KILLED = auto()
    # By SIGTERM: it has ``GRACE_S`` to release what others wait for.
    ASKED = auto()
    # At the end of its pipes: it reads what others print, and ends when nobody can print any more,
    # so that the last lines are not lost. No signal but SIGKILL ends it, and not ``end_all``.
    AFTER_WRITERS = auto()


# What `end_all` does not simply kill.
_running: "weakref.WeakSet[Child]" = weakref.WeakSet()


class Child(subprocess.Popen[bytes]):
    """A child process; it ends with the thread that starts it, at the latest with this process.

    Args:
        command: made by ``script`` or ``module``.
        ending: how it ends.
        environ: its whole environment. Most have no use for any variable, and may know no secret.
        options: of ``subprocess.Popen``.
    """

    def __init__(
        self,
        command: Sequence[str],
        ending: Ending = Ending.KILLED,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.ending = ending
        options = {"stdin": subprocess.DEVNULL, "env": environ or {}, **options}
        masked = _OF_THE_GROUP if ending is Ending.AFTER_WRITERS else ()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, masked)
        try:
            super().__init__(_with_parent(command, ending), **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _running.add(self)

    def end(self) -> None:
        """End it, and wait until it is gone. Safe in a signal handler."""
        if self.ending is Ending.ASKED:
            self.terminate()
            self._wait_some_time()
        self.kill()
        self._wait_some_time()

    def _wait_some_time(self) -> None:
        # Never without a limit: the code that a signal interrupts may hold a lock of Popen's.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(GRACE_S)


async def start(command: Sequence[str], environ: Mapping[str, str], **options: Any) -> Process:
    """Start a child whose pipes are read on this loop; it ends by SIGKILL.

    Args:
        command: made by ``script`` or ``module``.
        environ: its whole environment.
        options: of ``asyncio.create_subprocess_exec``.

    Raises:
        OSError: the system can't start another process.
    """
    words = _with_parent(command, Ending.KILLED)
    return await asyncio.create_subprocess_exec(*words, env=environ, **options)


def script(file: str, *words: str | Path) -> list[str]:
    """Return the command of a file that imports the standard library only: it starts in 20 ms."""
    return [sys.executable, *ISOLATED, file, *map(str, words)]


def module(name: str, *words: str | Path) -> list[str]:
    """Return the command of a module of the worker; its environment is ``with_sources``."""
    # -P: nothing is imported from the current directory.
    return [sys.executable, "-P", "-m", name, *map(str, words)]


def with_sources(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds the modules of the worker."""
    path = filter(None, [str(_SOURCES), environ.get("PYTHONPATH")])
    return {**environ, "PYTHONPATH": ":".join(path)}


def fork(run: Callable[[], object]) -> int:
    """Run a function in a fork, which ends by SIGKILL; return its id.

    Call it while this process has one thread: a fork copies the locks that others hold. The fork
    prints the traceback of an exception, and ends with status 1.
    """
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        end_with(parent)
        run()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


@contextlib.contextmanager
def forks_end_with_this() -> Iterator[None]:
    """Let the forks that others make in this block end with this process, by SIGKILL.

    Those that these forks make are left alone; and all of them where a thread makes them that may
    end before this process: the kernel takes that for the end of their parent.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    parents = [os.getpid()] if in_main_thread else []

    def end_with_parent() -> None:
        # The hook can't be removed.
        if parents:
            end_with(parents.pop())

    os.register_at_fork(after_in_child=end_with_parent)
    try:
        yield
    finally:
        parents.clear()


def end_all(spare: Collection[subprocess.Popen[bytes]] = ()) -> None:
    """End all children, and theirs, also those that others have started. Safe in a signal handler.

    Args:
        spare: children that are left alone, besides those that end after all others.
    """
    asked = [child for child in tuple(_running) if child.ending is Ending.ASKED]
    for child in asked:
        child.terminate()
    for child in asked:
        child.end()
    last = [child for child in tuple(_running) if child.ending is Ending.AFTER_WRITERS]
    spared = {child.pid for child in (*last, *spare)}
    # A core that was forked a moment ago is not among multiprocessing's children yet.
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid not in spared:
                process.kill()


def signal_name(number: int) -> str:
    """Return a signal's name; those between the first and the last real-time one have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _with_parent(command: Sequence[str], ending: Ending) -> list[str]:
    if ending is Ending.AFTER_WRITERS:
        return [*command]
    number = signal.SIGTERM if ending is Ending.ASKED else signal.SIGKILL
    return script(with_parent.__file__, str(int(number)), str(os.getpid()), *command)
