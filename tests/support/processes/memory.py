"""Current and peak memory of a worker's processes."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

MB = 1024 * 1024


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and its descendants, without exited ones."""
    try:
        first = psutil.Process(pid)
        return [pid, *(child.pid for child in first.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def long_lived_tree(pid: int) -> list[int]:
    """Return the ids of a process and its descendants, without its children's brief forks."""
    return [descendant for descendant in process_tree(pid) if not _is_short_lived(descendant, pid)]


def _is_short_lived(pid: int, first: int) -> bool:
    try:
        process = psutil.Process(pid)
        parent = process.parent()
        if pid == first or parent is None or parent.pid == first:
            return False
        # A process that is about to exit no longer has a command line.
        return process.cmdline() in ([], parent.cmdline())
    except psutil.NoSuchProcess:
        return True


def reset_peaks(pids: Iterable[int]) -> None:
    """Reset the peaks that the kernel records."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the total resident memory of the processes."""
    return sum(_status(pid, "VmRSS") for pid in pids)


def peak_bytes(pids: Iterable[int]) -> int:
    """Return the sum of the processes' peaks since ``reset_peaks``."""
    return sum(_status(pid, "VmHWM") for pid in pids)


def _status(pid: int, key: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0
