"""What the machine has: its GPUs, asked of the driver, so that no CUDA context is created."""

from dataclasses import dataclass

from worker.engine.locations import find
from worker.errors import StartFailed


@dataclass(frozen=True)
class Gpu:
    """One graphics card; ``memory`` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """What engines can be started on; ``cpu`` is whether the installed vLLM is its CPU build."""

    cpu: bool
    gpus: tuple[Gpu, ...] = ()


def machine() -> Machine:
    """Look at this machine; GPUs that ``CUDA_VISIBLE_DEVICES`` hides do not count.

    Raises:
        StartFailed: vLLM finds nothing to run on.
    """
    platform = find("current_platform")
    if platform.is_unspecified():
        raise StartFailed("vLLM finds no GPU on this machine, and is not its CPU build")
    if platform.is_cpu():
        return Machine(cpu=True)
    every = range(platform.device_count())
    return Machine(
        cpu=False,
        gpus=tuple(
            Gpu(platform.get_device_name(each), platform.get_device_total_memory(each))
            for each in every
        ),
    )
