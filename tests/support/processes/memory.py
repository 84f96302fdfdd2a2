"""How much memory the processes of a worker take, and took at most."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

MB = 1024 * 1024


def family(pid: int) -> list[int]:
    """Return a process and its descendants, without those that have ended."""
    try:
        first = psutil.Process(pid)
        return [pid, *(child.pid for child in first.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def lasting(pid: int) -> list[int]:
    """Return a process and its descendants, without forks of its children: they soon end."""
    return [one for one in family(pid) if not _is_passing(one, pid)]


def _is_passing(pid: int, first: int) -> bool:
    try:
        process = psutil.Process(pid)
        parent = process.parent()
        if pid == first or parent is None or parent.pid == first:
            return False
        # One that is about to end has no command line any more.
        return process.cmdline() in ([], parent.cmdline())
    except psutil.NoSuchProcess:
        return True


def forget_peaks(pids: Iterable[int]) -> None:
    """Let the kernel count the peaks anew."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident(pids: Iterable[int]) -> int:
    """Return how many bytes processes have in memory, all together."""
    return sum(_status(pid, "VmRSS") for pid in pids)


def peak(pids: Iterable[int]) -> int:
    """Return the sum of what each had at most since ``forget_peaks``."""
    return sum(_status(pid, "VmHWM") for pid in pids)


def _status(pid: int, key: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0
