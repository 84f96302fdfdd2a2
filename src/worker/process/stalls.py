"""Ends a start that does not move (``START_STALL_S``).

A fork of this process watches it: a start has no thread before its core is forked, and a thread
would wait with everybody else for code in C that keeps the interpreter's lock.
"""

import contextlib
import ctypes
import faulthandler
import logging
import mmap
import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import psutil

from worker import children
from worker.process import phases
from worker.settings import Settings

log = logging.getLogger("worker")

SETTING = "START_STALL_S"
# Prints the stacks of a process of the worker, and ends it with status 1.
STOP = signal.SIGHUP
# Looks within the time that is watched, and seconds between two of them at most.
LOOKS = 20
LONGEST_LOOK_S = 5.0
# The watcher was frozen, or very busy, if it looks so late: the start may have been, too.
LATE_S = 5.0
# What does not count as a movement: a share of a processor, of each process, and bytes a second.
# Those that wait look at clocks and sockets (gloo), and vLLM's say so once a minute. A worker that
# waits for the download of another one reads more.
WAITS = 0.05
WAITS_BYTES_S = 16
# Of a file that is mapped into memory some file systems count no bytes, only the major faults.
BYTES_OF_FAULT = 4096
# Fields of /proc/PID/io: bytes of reads and writes, and those from a disk, where a loader reads
# around the page cache, or has the kernel read meanwhile.
_COUNTED = ("rchar", "wchar", "read_bytes")
# Scripts that are no helpers: the engine waits for what is read ahead, and what only begins as the
# other one becomes another command.
_NO_HELPERS = ("/ahead/reader.py", "/children/with_parent.py")
# Seconds for a process to print its stacks and end.
ENDS_S = 5.0

# Ends the watch, if there is one.
_watch = contextlib.ExitStack()


def begin(values: Mapping[str, str]) -> None:
    """Watch this process from now on, and all that it starts, unless START_STALL_S is 0.

    Args:
        values: the settings as text. One that can't be read is reported by the start itself.
    """
    patience_s: float = Settings.model_fields[SETTING.lower()].default
    with contextlib.suppress(ValueError):
        patience_s = float(values.get(SETTING) or patience_s)
    if patience_s <= 0:
        return
    # Shared with the watcher: the phase that the start is in.
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    watcher = children.fork(partial(watch, os.getpid(), shared, patience_s))
    _watch.callback(os.waitpid, watcher, 0)
    _watch.callback(os.kill, watcher, signal.SIGKILL)
    _watch.callback(signal.signal, STOP, signal.getsignal(STOP))
    _watch.callback(faulthandler.unregister, STOP)
    end_on_signal()

    def share(phase: str) -> None:
        shared[:] = phase.encode().ljust(mmap.PAGESIZE, b"\0")

    phases.listeners.append(share)
    _watch.callback(phases.listeners.remove, share)


def end() -> None:
    """End the watch, if there is one: the start is over."""
    _watch.close()


def end_on_signal() -> None:
    """Let this process and its forks print their stacks and end, when the watcher's signal comes.

    Both happen in C, in the signal's handler: also where no code of Python runs any more. The first
    process of a container ignores what it handles not, SIGKILL among it.
    """
    if signal.getsignal(STOP) is signal.SIG_IGN:
        # As nohup has it: the worker is to outlive its terminal. The watcher kills it.
        return
    libc = ctypes.CDLL(None)
    # It is called with the signal's number, which becomes the status: that of SIGHUP is 1.
    libc.signal(STOP, libc._exit)
    faulthandler.register(STOP, file=2, all_threads=True, chain=True)


def bytes_moved(proc: Path) -> int:
    """Return the bytes that a process has read and written, files, pipes and its log among them.

    Raises:
        OSError: it has ended, or this kernel counts none.
    """
    lines = (proc / "io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    # Field 12 of stat: the second one, the name in parentheses, may hold anything.
    faults = (proc / "stat").read_text().rpartition(")")[2].split()[12 - 3]
    return sum(int(counts[name]) for name in _COUNTED) + int(faults) * BYTES_OF_FAULT


def processes_of(worker: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it, without the watcher and the worker's other helpers.

    What helpers do is no movement: they answer pings, or read what is printed.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    found = [worker]
    for process in worker.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            helps = command[1:3] == children.ISOLATED and not command[3].endswith(_NO_HELPERS)
            if process.pid != os.getpid() and not helps:
                found.append(process)
    return found


def used(
    processes: list[psutil.Process], seen: dict[psutil.Process, tuple[float, int]]
) -> tuple[float, int]:
    """Return what the processes of a start have used since the last look.

    That is seconds of a processor, of one process on average, and bytes read and written.
    ``seen``, what each had used at the last look, is brought up to date.
    """
    used_s, moved = 0.0, 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            times, now = process.cpu_times(), bytes_moved(Path(f"/proc/{process.pid}"))
            before_s, before = seen.get(process, (0.0, 0))
            seen[process] = times.user + times.system, now
            used_s += (times.user + times.system - before_s) / len(processes)
            moved += now - before
    return used_s, moved


class Stillness:
    """For how long nothing has moved; pure. The clock is ``time.monotonic``, in seconds."""

    def __init__(self, now: float) -> None:
        self.phase = b""
        self._looked_at = self._moved_at = now
        # Used since the last movement.
        self._processor_s, self._bytes = 0.0, 0

    def look(self, now: float, phase: bytes, processor_s: float, bytes_moved: int) -> float:
        """Return the seconds since the last movement; call it every ``LONGEST_LOOK_S``.

        A new phase is a movement. The figures are what ``used`` returns.
        """
        self._processor_s += processor_s
        self._bytes += bytes_moved
        still_s = now - self._moved_at
        if (
            phase != self.phase
            or now - self._looked_at > LONGEST_LOOK_S + LATE_S
            or self._processor_s >= WAITS * still_s
            or self._bytes >= WAITS_BYTES_S * still_s
        ):
            self._moved_at, self._processor_s, self._bytes = now, 0.0, 0
        self._looked_at, self.phase = now, phase
        return now - self._moved_at


def watch(pid: int, shared: mmap.mmap, patience_s: float) -> None:
    """Watch a process until it does not move for so long, then end it.

    ``shared`` has the phase that its start is in.
    """
    try:
        bytes_moved(Path(f"/proc/{pid}"))
    except OSError as error:
        log.warning("a start that hangs is not noticed here, where /proc lacks: %s", error)
        return
    worker, still_s, stillness = psutil.Process(pid), 0.0, Stillness(time.monotonic())
    seen: dict[psutil.Process, tuple[float, int]] = {}
    while still_s < patience_s:
        time.sleep(min(patience_s / LOOKS, LONGEST_LOOK_S))
        phase = shared[:].rstrip(b"\0")
        still_s = stillness.look(time.monotonic(), phase, *used(processes_of(worker), seen))
    end_start(processes_of(worker), stillness.phase.decode(), patience_s)


def end_start(processes: list[psutil.Process], phase: str, patience_s: float) -> None:
    """Say where a start hangs, and end all of its processes, the worker's own last."""
    where = f"in its phase {phase!r}" if phase else "between two phases"
    log.critical(
        "the start has not moved for %g s %s: no processor time, no bytes read or written, "
        "nothing logged. It is taken for this machine's fault: it ends, and has taken no job. "
        "Where its processes are, the last call first (START_STALL_S=0: a start may take any "
        "time):",
        patience_s,
        where,
    )
    worker, *others = processes
    # Or it would notice the end of its core, and begin to do something about it.
    worker.suspend()
    for process in (*others, worker):
        stop(process)


def stop(process: psutil.Process) -> None:
    """Let a process print its stacks and end; kill it if it can't."""
    with contextlib.suppress(psutil.NoSuchProcess):
        title = "the worker" if process.pid == os.getppid() else process.name()
        log.critical("%s (pid %d), %s:", title, process.pid, process.status())
        process.send_signal(STOP)
        process.resume()
        deadline = time.monotonic() + ENDS_S
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                log.critical("pid %d does not answer: it is killed", process.pid)
                process.kill()
                return
            time.sleep(0.02)
