"""Ends a startup that has made no progress for START_STALL_S seconds.

A forked process watches the startup. A thread can't: no thread may exist before the engine core is
forked, and C code that holds the interpreter's lock would block a thread, too.
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
# Signal that makes a process of the worker print its stacks and exit with status 1.
EXIT_SIGNAL = signal.SIGHUP
# Number of checks within the timeout, and the maximum seconds between two checks.
CHECKS_PER_TIMEOUT = 20
MAX_CHECK_INTERVAL_S = 5.0
# A check that is this many seconds late means that the watcher was frozen or the machine very busy.
# That may have slowed down the startup, too, so a late check counts as progress.
LATE_CHECK_S = 5.0
# Maximum activity of a process that only waits: a share of one CPU, and bytes per second. Waiting
# processes check clocks and sockets (gloo), and vLLM's processes log once a minute that they wait.
# A worker that waits for another worker's download reads more and counts as active.
IDLE_CPU_SHARE = 0.05
IDLE_BYTES_PER_S = 16
# Some file systems count no bytes for reads from memory-mapped files, only major page faults.
BYTES_PER_FAULT = 4096
# Fields of /proc/PID/io: bytes read and written, and bytes read from a disk. A loader may bypass
# the page cache or let the kernel read ahead; such bytes count only in the last field.
_IO_FIELDS = ("rchar", "wchar", "read_bytes")
# Scripts in ``children.ISOLATED`` processes whose activity is progress: the engine waits for the
# read-ahead, and with_parent.py replaces itself by a command that the startup needs.
_STARTUP_SCRIPTS = ("/ahead/reader.py", "/children/with_parent.py")
# Maximum seconds for a process to print its stacks and exit.
EXIT_TIMEOUT_S = 5.0

# Callbacks that stop the current watcher.
_watch_stack = contextlib.ExitStack()


def start_watcher(values: Mapping[str, str]) -> None:
    """Fork a process that watches the startup of this process, unless START_STALL_S is 0.

    Args:
        values: Settings as strings. An invalid value is reported later, and the default applies.
    """
    timeout_s: float = Settings.model_fields[SETTING.lower()].default
    with contextlib.suppress(ValueError):
        timeout_s = float(values.get(SETTING) or timeout_s)
    if timeout_s <= 0:
        return
    # Memory shared with the watcher; it contains the current phase of the startup.
    shared_phase = mmap.mmap(-1, mmap.PAGESIZE)
    watcher = children.run_in_fork(partial(watch_startup, os.getpid(), shared_phase, timeout_s))
    _watch_stack.callback(os.waitpid, watcher, 0)
    _watch_stack.callback(os.kill, watcher, signal.SIGKILL)
    _watch_stack.callback(signal.signal, EXIT_SIGNAL, signal.getsignal(EXIT_SIGNAL))
    _watch_stack.callback(faulthandler.unregister, EXIT_SIGNAL)
    install_exit_handler()

    def share_phase(phase: str) -> None:
        shared_phase[:] = phase.encode().ljust(mmap.PAGESIZE, b"\0")

    phases.listeners.append(share_phase)
    _watch_stack.callback(phases.listeners.remove, share_phase)


def stop_watcher() -> None:
    """Stop the watcher, if one is running, at the end of the startup."""
    _watch_stack.close()


def install_exit_handler() -> None:
    """Make this process and its forks print their stacks and exit on the watcher's signal.

    The signal handler runs in C, so it also works when no Python code can run. A handler is
    necessary because the first process of a container ignores all signals that it doesn't handle,
    even SIGKILL from within the container.
    """
    if signal.getsignal(EXIT_SIGNAL) is signal.SIG_IGN:
        # nohup made this process ignore SIGHUP, and it must still do so when its terminal closes.
        # Therefore the watcher ends a stalled startup by SIGKILL, without stacks.
        return
    libc = ctypes.CDLL(None)
    # The handler is called with the signal's number, which becomes the exit status: SIGHUP is 1.
    libc.signal(EXIT_SIGNAL, libc._exit)
    faulthandler.register(EXIT_SIGNAL, file=2, all_threads=True, chain=True)


def count_io_bytes(proc_folder: Path) -> int:
    """Return the bytes that a process has read and written.

    Pipes and the log count. Reads from memory-mapped files count, too, estimated from major page
    faults. Bytes that were read from a disk may count twice.
    """
    lines = (proc_folder / "io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    # Major page faults are field 12 of stat. Split after the parentheses because the process name
    # within them may contain spaces.
    faults = (proc_folder / "stat").read_text().rpartition(")")[2].split()[12 - 3]
    return sum(int(counts[name]) for name in _IO_FIELDS) + int(faults) * BYTES_PER_FAULT


def startup_processes(worker: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants, without the watcher and the worker's other helpers.

    The activity of helpers is not progress: they answer pings or read output.

    Raises:
        psutil.NoSuchProcess: If the process no longer exists.
    """
    processes = [worker]
    for process in worker.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            args = process.cmdline()
            is_helper = args[1:3] == children.ISOLATED and not args[3].endswith(_STARTUP_SCRIPTS)
            if process.pid != os.getpid() and not is_helper:
                processes.append(process)
    return processes


def measure_cpu_and_io(
    processes: list[psutil.Process], last_usage: dict[psutil.Process, tuple[float, int]]
) -> tuple[float, int]:
    """Return the CPU seconds and the bytes of I/O of some processes since the last check.

    The CPU seconds are the average per process, the bytes the total. ``last_usage`` has the CPU
    seconds and bytes of each process at the last check and is updated in place.
    """
    cpu_s, total_bytes = 0.0, 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            times, bytes_now = process.cpu_times(), count_io_bytes(Path(f"/proc/{process.pid}"))
            last_cpu_s, last_bytes = last_usage.get(process, (0.0, 0))
            last_usage[process] = times.user + times.system, bytes_now
            cpu_s += (times.user + times.system - last_cpu_s) / len(processes)
            total_bytes += bytes_now - last_bytes
    return cpu_s, total_bytes


class StallDetector:
    """Measures for how long a startup has made no progress, in times of ``time.monotonic``."""

    def __init__(self, now: float) -> None:
        self.phase = b""
        self._checked_at = self._active_at = now
        # Usage since the last progress.
        self._cpu_s, self._bytes = 0.0, 0

    def update_idle_seconds(self, now: float, phase: bytes, cpu_s: float, byte_count: int) -> float:
        """Add the usage since the last update, and return the seconds since the last progress.

        Progress is a change of the phase, or more CPU time or bytes than waiting processes use. A
        late update also counts. Call this at least every ``MAX_CHECK_INTERVAL_S``.
        """
        self._cpu_s += cpu_s
        self._bytes += byte_count
        idle_s = now - self._active_at
        if (
            phase != self.phase
            or now - self._checked_at > MAX_CHECK_INTERVAL_S + LATE_CHECK_S
            or self._cpu_s >= IDLE_CPU_SHARE * idle_s
            or self._bytes >= IDLE_BYTES_PER_S * idle_s
        ):
            self._active_at, self._cpu_s, self._bytes = now, 0.0, 0
        self._checked_at, self.phase = now, phase
        return now - self._active_at


def watch_startup(pid: int, shared_phase: mmap.mmap, timeout_s: float) -> None:
    """Watch a startup, and end its processes when it has made no progress for ``timeout_s``.

    Return immediately if the kernel doesn't report the bytes that a process reads and writes.
    """
    try:
        count_io_bytes(Path(f"/proc/{pid}"))
    except OSError as error:
        log.warning("a start that hangs can't be detected, because /proc lacks: %s", error)
        return
    worker, idle_s, detector = psutil.Process(pid), 0.0, StallDetector(time.monotonic())
    last_usage: dict[psutil.Process, tuple[float, int]] = {}
    while idle_s < timeout_s:
        time.sleep(min(timeout_s / CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S))
        phase = shared_phase[:].rstrip(b"\0")
        idle_s = detector.update_idle_seconds(
            time.monotonic(), phase, *measure_cpu_and_io(startup_processes(worker), last_usage)
        )
    kill_startup(startup_processes(worker), detector.phase.decode(), timeout_s)


def kill_startup(processes: list[psutil.Process], phase: str, timeout_s: float) -> None:
    """Log where the startup hangs, and end all of its processes, the worker's own last."""
    position = f"in its phase {phase!r}" if phase else "between two phases"
    log.critical(
        "the start has made no progress for %g s %s: no CPU time, no bytes read or written, "
        "nothing logged. The machine is probably faulty. The worker exits; it has taken no job. "
        "The calls of its processes, the last one first (START_STALL_S=0 disables this check):",
        timeout_s,
        position,
    )
    worker, *others = processes
    # Suspend the worker first. Otherwise it would notice the engine core's exit and react to it.
    worker.suspend()
    for process in (*others, worker):
        dump_stacks_and_kill(process)


def dump_stacks_and_kill(process: psutil.Process) -> None:
    """Make a process print its stacks and exit; kill it if it doesn't."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process_name = "the worker" if process.pid == os.getppid() else process.name()
        log.critical("%s (pid %d), %s:", process_name, process.pid, process.status())
        process.send_signal(EXIT_SIGNAL)
        process.resume()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                log.critical("pid %d does not respond, and is killed", process.pid)
                process.kill()
                return
            time.sleep(0.02)
