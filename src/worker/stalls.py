"""Ends a start that does not move (``START_STALL_S``).

A fork of this process watches it: a start has no thread before its core is forked, and a thread
would wait with everybody else for code in C that keeps the interpreter's lock.
"""

import contextlib
import ctypes
import faulthandler
import mmap
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from worker import children, phases
from worker.settings import Settings

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
_NO_HELPERS = ("/start/reader.py", "/children/with_parent.py")
# Seconds for a process to print its stacks and end, and between two looks whether it has.
ENDS_S = 5.0
LOOK_AT_END_S = 0.02


class Watch:
    """Watches this process from now on, and all that it starts, until it is ended.

    Args:
        patience_s: seconds without a movement that are too many.
    """

    def __init__(self, patience_s: float) -> None:
        self._before = signal.getsignal(STOP)
        # Shared with the watcher: the phase that the start is in.
        self._phase = mmap.mmap(-1, mmap.PAGESIZE)
        self._watcher = children.fork(partial(watch, os.getpid(), self._phase, patience_s))
        end_on_signal()
        phases.listeners.append(self._tell)

    def end(self) -> None:
        """End the watch: the start is over."""
        phases.listeners.remove(self._tell)
        os.kill(self._watcher, signal.SIGKILL)
        os.waitpid(self._watcher, 0)
        faulthandler.unregister(STOP)
        signal.signal(STOP, self._before)

    def _tell(self, phase: str) -> None:
        self._phase[:] = phase.encode().ljust(mmap.PAGESIZE, b"\0")


_watches: list[Watch] = []


def begin(values: Mapping[str, str]) -> None:
    """Begin to watch, unless START_STALL_S is 0.

    Args:
        values: the settings as text. One that can't be read is reported by the start itself.
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
    if signal.getsignal(STOP) is signal.SIG_IGN:
        # As nohup has it: the worker is to outlive its terminal. The watcher kills it.
        return
    libc = ctypes.CDLL(None)
    # It is called with the signal's number, which becomes the status: that of SIGHUP is 1.
    libc.signal(STOP, libc._exit)
    faulthandler.register(STOP, file=2, all_threads=True, chain=True)


def bytes_moved(proc: Path) -> int:
    """Return the bytes that a process has read and written, files, pipes and its log among them.

    Args:
        proc: the directory in which the kernel counts them.

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


@dataclass
class Usage:
    """What the processes of a start have used so far, also those that have ended."""

    processor_s: float = 0.0  # of one process, on average
    bytes_moved: int = 0
    _seen: dict[psutil.Process, tuple[float, int]] = field(default_factory=dict)

    def look(self, processes: list[psutil.Process]) -> None:
        """Add what they have used since the last look."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                times, now = process.cpu_times(), bytes_moved(Path(f"/proc/{process.pid}"))
                before_s, before = self._seen.get(process, (0.0, 0))
                self._seen[process] = times.user + times.system, max(before, now)
                self.processor_s += (times.user + times.system - before_s) / len(processes)
                self.bytes_moved += max(0, now - before)


class Window:
    """Tells whether anything has moved within the last so many seconds; pure.

    The clock is ``time.monotonic``.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._samples: deque[tuple[float, float, int]] = deque()

    def moved(self) -> None:
        """Take note of a movement that no figure shows."""
        self._samples.clear()

    def stands_still(self, now: float, processor_s: float, bytes_moved: int) -> bool:
        """Return whether nothing has moved for too long; call it every ``LONGEST_LOOK_S``.

        Args:
            now: the time.
            processor_s: seconds of a processor that were used so far, by a process on average.
            bytes_moved: bytes that were read and written so far.
        """
        samples = self._samples
        if samples and now - samples[-1][0] > LONGEST_LOOK_S + LATE_S:
            samples.clear()
        samples.append((now, processor_s, bytes_moved))
        while len(samples) > 1 and samples[1][0] <= now - self._patience_s:
            samples.popleft()
        begun, processor_s_then, bytes_then = samples[0]
        took_s = now - begun
        return (
            took_s >= self._patience_s
            and processor_s - processor_s_then < WAITS * took_s
            and bytes_moved - bytes_then < WAITS_BYTES_S * took_s
        )


def watch(pid: int, shared: mmap.mmap, patience_s: float) -> None:
    """Watch a process until it does not move, then end it.

    Args:
        pid: id of the process that starts.
        shared: has the phase that the start is in.
        patience_s: seconds without a movement that are too many.
    """
    try:
        bytes_moved(Path(f"/proc/{pid}"))
    except OSError as error:
        say(f"a start that hangs is not noticed here, where /proc lacks: {error}", "WARNING")
        return
    worker, window, usage, phase = psutil.Process(pid), Window(patience_s), Usage(), b""
    while not window.stands_still(time.monotonic(), usage.processor_s, usage.bytes_moved):
        time.sleep(min(patience_s / LOOKS, LONGEST_LOOK_S))
        if (now := shared[:].rstrip(b"\0")) != phase:
            phase = now
            window.moved()
        usage.look(processes_of(worker))
    end_start(processes_of(worker), phase.decode(), patience_s)


def end_start(processes: list[psutil.Process], phase: str, patience_s: float) -> None:
    """Say where a start hangs, and end all of its processes, the worker's own last."""
    where = f"in its phase {phase!r}" if phase else "between two phases"
    say(
        f"the start has not moved for {patience_s:g} s {where}: no processor time, no bytes read "
        "or written, nothing logged. It is taken for this machine's fault: it ends, and has taken "
        "no job. Where its processes are, the last call first (START_STALL_S=0: a start may take "
        "any time):"
    )
    worker, *others = processes
    # Or it would notice the end of its core, and begin to do something about it.
    worker.suspend()
    for process in others:
        stop(process)
    stop(worker)


def stop(process: psutil.Process) -> None:
    """Let a process print its stacks and end; kill it if it can't."""
    with contextlib.suppress(psutil.NoSuchProcess):
        title = "the worker" if process.pid == os.getppid() else process.name()
        say(f"{title} (pid {process.pid}), {process.status()}:")
        process.send_signal(STOP)
        process.resume()
        deadline = time.monotonic() + ENDS_S
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                say(f"pid {process.pid} does not answer: it is killed")
                process.kill()
                return
            time.sleep(LOOK_AT_END_S)


def say(text: str, level: str = "CRITICAL") -> None:
    """Log a line, as the worker does; a start that hangs is ended also where nobody reads it."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S,000")
    with contextlib.suppress(OSError):
        os.write(2, f"{stamp} {level} worker: {text}\n".encode())
