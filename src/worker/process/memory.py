"""How much memory this process may use, and how much of it is free."""

from collections.abc import Iterator
from pathlib import Path

import psutil

# Where the kernel has the limits of this process's control group.
CGROUP = Path("/sys/fs/cgroup")
# Largest share of the memory for weights in the page cache; the engine needs some, too.
CACHE_SHARE = 0.8
# In version 2 of control groups, and in version 1: the files of the limit on memory and of what is
# used, and the file and the name of what is used but would be given up, the page cache.
_VERSIONS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the bytes of memory that this process may use.

    That is the container's limit, or the physical memory where that is less.
    """
    physical: int = psutil.virtual_memory().total
    return min([physical, *_container_limits(cgroup)])


def available_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that the page cache can take: what is free, or the limit if that is less."""
    free: int = psutil.virtual_memory().available
    return min(free, memory_limit(cgroup))


def free_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that this process can still take, by the machine and by its container."""
    free: int = psutil.virtual_memory().available
    return max(0, min([free, *_container_rests(cgroup)]))


def _container_limits(cgroup: Path) -> Iterator[int]:
    for name, *_ in _VERSIONS:
        file = cgroup / name
        # Version 2 writes "max" where there is no limit, version 1 a number beyond any memory.
        if file.is_file() and (limit := file.read_text().strip()).isdecimal():
            yield int(limit)


def _container_rests(cgroup: Path) -> Iterator[int]:
    limits = list(_container_limits(cgroup))
    for _, used, statistics, cache in _VERSIONS:
        if limits and (cgroup / used).is_file():
            # Some sandboxes have no statistics.
            counts = cgroup / statistics
            lines = counts.read_text().splitlines() if counts.is_file() else []
            given_up = dict(line.split() for line in lines).get(cache, 0)
            yield limits[0] - int((cgroup / used).read_text()) + int(given_up)
