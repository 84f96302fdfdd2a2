"""What the machine has: GPUs, looked up in the driver, so that no CUDA context is created."""

from dataclasses import dataclass

from worker.engine.locations import find, optional
from worker.errors import MachineUnfit
from worker.memory import memory_limit


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


def cpu_memory() -> int:
    """Return the bytes of memory in which vLLM keeps an engine's weights and cache on a CPU."""
    limit = memory_limit()
    for node in optional("get_memory_node_info"):
        (first, *_) = find("get_allowed_cpu_list")()
        limit = min(limit, node(first.numa_node).total_memory)
    return limit


def this_machine() -> Machine:
    """Return what this machine has, without GPUs that ``CUDA_VISIBLE_DEVICES`` hides.

    Raises:
        MachineUnfit: vLLM finds nothing to run on.
    """
    platform = find("current_platform")
    if platform.is_unspecified():
        raise MachineUnfit("vLLM finds no GPU on this machine, and is not its CPU build")
    if platform.is_cpu():
        return Machine(cpu=True)
    gpus = (
        Gpu(platform.get_device_name(number), platform.get_device_total_memory(number))
        for number in range(platform.device_count())
    )
    return Machine(cpu=False, gpus=tuple(gpus))
