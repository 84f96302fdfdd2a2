"""Watches a start from outside, and ends it if nothing moves any more. Runs as a script.

It imports nothing but the standard library, so that it begins within milliseconds.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

# Prints the stacks of a process of the worker, and ends it with status 1.
STOP = signal.SIGHUP
# Looks within the time that is watched, and seconds between two of them at most.
LOOKS = 20
LONGEST_LOOK_S = 5.0
# This process was frozen, or very busy, if it looks so late: the start may have been, too.
LATE_S = 5.0
# What does not count as a movement: a share of a processor, of each process, and bytes a second.
# Those that wait look at clocks and sockets (gloo), and vLLM's say so once a minute. A worker that
# waits for the download of another one reads more.
WAITS = 0.05
WAITS_BYTES_S = 16
# Of a file that is mapped into memory some file systems count no bytes, only the faults.
BYTES_OF_FAULT = 4096
# What /proc counts: bytes of reads and writes, and those from a disk, where a loader reads around
# the page cache, or has the kernel read meanwhile.
_COUNTED = ("rchar", "wchar", "read_bytes")
# Seconds for a process to print its stacks and end.
ENDS_S = 5.0
LOOK_AT_END_S = 0.02

# What reading /proc raises of a process that has ended, before the read and in it.
_ENDED = (FileNotFoundError, ProcessLookupError)
_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: proc(5) counts from 1, with two before them.
_STATE, _PARENT, _MAJOR_FAULTS, _USER, _SYSTEM, _BEGUN = (n - 3 for n in (3, 4, 12, 14, 15, 22))
_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a disk or a device, where no signal reaches it",
    "T": "stopped by a signal",
    "Z": "ended",
}
# The worker's own helpers: this one, what answers pings, the readers of what is printed. What they
# do is no movement, and they end after all others, when everything is where it belongs.
_HELPER = [b"-I", b"-S"]
# None of them is the one that reads weights ahead, since the engine waits for what it reads, nor
# what becomes another command.
_NO_HELPER = (b"/start/reader.py", b"/worker/with_parent.py")


@dataclass(frozen=True)
class Process:
    """What /proc tells of a process."""

    pid: int
    parent: int
    state: str
    # With the time it began: a number may be used again.
    key: tuple[int, int]
    processor_s: float
    faults: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Read it.

        Raises:
            OSError: there is none.
        """
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        key, faults = (pid, int(fields[_BEGUN])), int(fields[_MAJOR_FAULTS])
        return cls(pid, int(fields[_PARENT]), fields[_STATE], key, ticks / _TICKS, faults)

    @property
    def command(self) -> list[bytes]:
        """Its command line; [] if it has ended."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        return []

    @property
    def is_helper(self) -> bool:
        """Whether it is one of the worker's own helpers."""
        command = self.command
        return command[1:3] == _HELPER and not command[3].endswith(_NO_HELPER)

    @property
    def title(self) -> str:
        """What it calls itself: cores, and their parts, choose a name."""
        return b"".join(self.command[:1]).decode(errors="replace")

    @property
    def bytes_moved(self) -> int:
        """The bytes that it has read and written, files, pipes and what it logs among them."""
        counted = 0
        with contextlib.suppress(OSError):
            counted = self.bytes_counted()
        return counted + self.faults * BYTES_OF_FAULT

    def bytes_counted(self) -> int:
        """Return the bytes that the kernel counts.

        Raises:
            OSError: it has ended, or this kernel counts none.
        """
        return bytes_in(Path(f"/proc/{self.pid}/io").read_text())

    @property
    def handles_stop(self) -> bool:
        """Whether it prints its stacks on ``STOP``."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (STOP - 1) & 1)
        return False


def bytes_in(counts: str) -> int:
    """Return the bytes that were moved, by the text of ``/proc/PID/io``."""
    lines = (line.partition(": ") for line in counts.splitlines())
    return sum(int(count) for name, _, count in lines if name in _COUNTED)


def tree(root: int) -> list[Process]:
    """Return a process and all below it, children after their parents, without helpers.

    Raises:
        OSError: the first has ended.
    """
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                process = Process.of(int(path.name))
                children.setdefault(process.parent, []).append(process)
    found = [Process.of(root)]
    for parent in found:
        below = children.get(parent.pid, [])
        found += [child for child in below if not child.is_helper]
    return found


@dataclass
class Usage:
    """What the processes of a start have used so far, also those that have ended."""

    processor_s: float = 0.0  # of one process, on average
    bytes_moved: int = 0
    _seen: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)

    def look(self, processes: list[Process]) -> None:
        """Add what they have used since the last look."""
        for process in processes:
            before_s, before = self._seen.get(process.key, (0.0, 0))
            now_s, now = process.processor_s, process.bytes_moved
            self._seen[process.key] = now_s, max(before, now)
            self.processor_s += (now_s - before_s) / len(processes)
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


def watch(control: socket.socket, worker: int, patience_s: float) -> None:
    """Watch until the control ends.

    Args:
        control: says which phase the start is in, a line for each.
        worker: id of the process that starts.
        patience_s: seconds without a movement that are too many.
    """
    if not can_watch(worker):
        return
    window, usage, phase = Window(patience_s), Usage(), ""
    look_s = min(patience_s / LOOKS, LONGEST_LOOK_S)
    while True:
        if select.select([control], [], [], look_s)[0]:
            lines = control.recv(4096).decode().split("\n")
            if lines == [""]:
                return
            phase = lines[-2]
            window.moved()
        usage.look(tree(worker))
        if window.stands_still(time.monotonic(), usage.processor_s, usage.bytes_moved):
            end(worker, phase, patience_s)
            return


def can_watch(worker: int) -> bool:
    """Return whether the kernel tells what the worker does. If not, nothing is ended: say so."""
    try:
        Process.of(worker).bytes_counted()
    except OSError as error:
        if os.getppid() == worker:
            say(f"a start that hangs is not noticed here, where /proc lacks: {error}", "WARNING")
        return False
    return True


def end(worker: int, phase: str, patience_s: float) -> None:
    """Say where a start hangs, and end all of its processes."""
    where = f"in its phase {phase!r}" if phase else "between two phases"
    say(
        f"the start has not moved for {patience_s:g} s {where}: no processor time, no bytes read "
        "or written, nothing logged. It is taken for this machine's fault: it ends, and has taken "
        "no job. Where its processes are, the last call first (START_STALL_S=0: a start may take "
        "any time):"
    )
    first, *others = tree(worker)
    # Or it would notice the end of its core, and begin to do something about it.
    send(worker, signal.SIGSTOP)
    for process in others:
        if process.handles_stop:
            stop(process, process.title)
    for process in others:
        send(process.pid, signal.SIGKILL)
    stop(first, "the worker")


def stop(process: Process, title: str) -> None:
    """Let a process print its stacks and end; kill it if it can't."""
    say(f"{title} (pid {process.pid}), {_STATES.get(process.state, process.state)}:")
    send(process.pid, STOP)
    send(process.pid, signal.SIGCONT)
    deadline = time.monotonic() + ENDS_S
    while runs(process):
        if time.monotonic() > deadline:
            say(f"pid {process.pid} does not answer: it is killed")
            send(process.pid, signal.SIGKILL)
            return
        time.sleep(LOOK_AT_END_S)


def runs(process: Process) -> bool:
    """Return whether it has not ended."""
    try:
        now = Process.of(process.pid)
    except OSError:
        return False
    return now.key == process.key and now.state != "Z"


def send(pid: int, number: int) -> None:
    """Send a signal, unless the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def say(text: str, level: str = "CRITICAL") -> None:
    """Log a line, as the worker does; a start that hangs is ended also where nobody reads it."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S,000")
    with contextlib.suppress(OSError):
        os.write(2, f"{stamp} {level} worker: {text}\n".encode())


if __name__ == "__main__":
    # Ctrl-C reaches the whole process group: the worker decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _control, _worker, _patience_s = sys.argv[1:]
    # The worker may end at any time.
    with contextlib.suppress(*_ENDED):
        watch(socket.socket(fileno=int(_control)), int(_worker), float(_patience_s))
