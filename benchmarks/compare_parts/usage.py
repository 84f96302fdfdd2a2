"""What a tree of processes uses of the machine."""

from collections.abc import Iterator
from contextlib import suppress

import psutil

MIB = 2**20


def cpu_s(pid: int) -> float:
    """Add up the CPU seconds of a process and of its descendants, ended ones included."""
    total = 0.0
    for process in _tree(pid):
        # One that ended meanwhile counts with its parent.
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mib(pid: int) -> float:
    """Add up the proportional set sizes: a page that several processes share counts once."""
    total: float = sum(process.memory_full_info().pss for process in _tree(pid))
    return total / MIB


def _tree(pid: int) -> Iterator[psutil.Process]:
    root = psutil.Process(pid)
    yield root
    yield from root.children(recursive=True)
