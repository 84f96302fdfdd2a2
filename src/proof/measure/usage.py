"""Resource usage of a tree of processes."""

from collections.abc import Iterator
from contextlib import suppress

import psutil

MIB = 2**20


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including exited ones."""
    total = 0.0
    for process in _tree(pid):
        # The time of a process that exits meanwhile is added to its parent's.
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mib(pid: int) -> float:
    """Return the sum of the proportional set sizes, in which a shared page counts once."""
    total = 0.0
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / MIB


def _tree(pid: int) -> Iterator[psutil.Process]:
    root = psutil.Process(pid)
    yield root
    yield from root.children(recursive=True)
