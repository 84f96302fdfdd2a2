"""What the machine has: GPUs and memory.

GPUs are looked up in the driver, so that no CUDA context is created.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from worker.engine.locations import find
from worker.errors import StartFailed

# Where the kernel has the limits of this process's control group.
CGROUP = Path("/sys/fs/cgroup")
# The files of a limit on memory, in version 2 of control groups and in version 1.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Gpu:
    """A GPU; ``memory`` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """What engines run on. ``cpu``: the installed vLLM is its CPU build."""

    cpu: bool
    gpus: tuple[Gpu, ...] = ()


def this_machine() -> Machine:
    """Return what this machine has, without GPUs that ``CUDA_VISIBLE_DEVICES`` hides.

    Raises:
        StartFailed: vLLM finds nothing to run on.
    """
    platform = find("current_platform")
    if platform.is_unspecified():
        raise StartFailed("vLLM finds no GPU on this machine, and is not its CPU build")
    if platform.is_cpu():
        return Machine(cpu=True)
    gpus = (
        Gpu(platform.get_device_name(number), platform.get_device_total_memory(number))
        for number in range(platform.device_count())
    )
    return Machine(cpu=False, gpus=tuple(gpus))


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


def _container_limits(cgroup: Path) -> Iterator[int]:
    for name in _LIMITS:
        file = cgroup / name
        # Version 2 writes "max" where there is no limit, version 1 a number beyond any memory.
        if file.is_file() and (limit := file.read_text().strip()).isdecimal():
            yield int(limit)
