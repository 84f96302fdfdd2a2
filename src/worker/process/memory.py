"""The memory limit of this process and its free memory."""

from collections.abc import Iterator
from pathlib import Path

import psutil

# Folder of this process's control group, which contains its limits.
CGROUP = Path("/sys/fs/cgroup")
# Maximum share of the memory for weights in the page cache; the engine needs memory, too.
PAGE_CACHE_SHARE = 0.8
# File names in versions 2 and 1 of control groups: the memory limit, the memory usage, the
# statistics, and the field of the statistics with the page cache that the kernel can reclaim.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)

# Files with the number of processes that the kernel killed because the group's memory was full.
_OOM_KILL_FILES = ("memory.events", "memory/memory.oom_control")


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Return how many bytes of memory this process may use.

    This is the smaller of the container's limit and the physical memory.
    """
    physical: int = psutil.virtual_memory().total
    return min([physical, *_container_limits(cgroup)])


def page_cache_capacity(cgroup: Path = CGROUP) -> int:
    """Return the bytes that the page cache can use: free memory, at most ``memory_limit``."""
    free: int = psutil.virtual_memory().available
    return min(free, memory_limit(cgroup))


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return how many more bytes this process can use, limited by the machine and the container."""
    free: int = psutil.virtual_memory().available
    return max(0, min([free, *_container_free_bytes(cgroup)]))


def count_oom_kills(cgroup: Path = CGROUP) -> int | None:
    """Return how many of the container's processes were killed because its memory was full.

    Returns None if the kernel does not count them.
    """
    for name in _OOM_KILL_FILES:
        if (file := cgroup / name).is_file():
            counts = dict(line.split() for line in file.read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def _container_limits(cgroup: Path) -> Iterator[int]:
    for name, *_ in _CGROUP_FILES:
        file = cgroup / name
        # Without a limit, version 2 writes "max", and version 1 a number larger than any memory.
        if file.is_file() and (limit := file.read_text().strip()).isdecimal():
            yield int(limit)


def _container_free_bytes(cgroup: Path) -> Iterator[int]:
    limits = list(_container_limits(cgroup))
    for _, used, statistics, cache in _CGROUP_FILES:
        if limits and (cgroup / used).is_file():
            # Some sandboxes have no statistics.
            counts = cgroup / statistics
            lines = counts.read_text().splitlines() if counts.is_file() else []
            reclaimable = dict(line.split() for line in lines).get(cache, 0)
            yield limits[0] - int((cgroup / used).read_text()) + int(reclaimable)
