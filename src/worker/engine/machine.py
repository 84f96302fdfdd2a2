"""What the machine has: GPUs, looked up in the driver, so that no CUDA context is created.

And how vLLM is asked about a GPU that is not here.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from worker.engine.seam.locations import find
from worker.engine.seam.patches import PLATFORM
from worker.errors import MachineUnfit
from worker.process.memory import memory_limit

_NUMA = "libnuma.so.1"
# Rules of vLLM's platforms that it has once for all devices, among them those of CUDA, and that its
# platform for CPUs replaces.
_OF_ALL_DEVICES = ("check_and_update_config", "supported_dtypes", "update_block_size_for_backend")
# An attribute of ``as_on``'s platforms.
_STANDS_FOR_GPU = "_stands_for_gpu"


@dataclass(frozen=True)
class Gpu:
    """A GPU; ``memory`` in bytes, ``capability`` is CUDA's: 89 is 8.9."""

    name: str
    memory: int
    capability: int = 0


@dataclass(frozen=True)
class Machine:
    """What engines run on. ``cpu``: the installed vLLM is its CPU build."""

    cpu: bool
    gpus: tuple[Gpu, ...] = ()


@contextlib.contextmanager
def as_on(gpu: Gpu, *, cuda: bool = False) -> Iterator[None]:
    """Let vLLM make configurations by no rule for CPUs, but as on a GPU that is not here.

    With ``cuda`` vLLM takes its platform for CUDA's, too. Modules that are imported then would look
    for kernels that are not here.
    """
    from vllm.platforms import interface  # noqa: PLC0415 - after the ports are open, as below

    platform = find("current_platform")
    own, base = type(platform), vars(interface.Platform)
    replaced: dict[str, Any] = {name: base[name] for name in _OF_ALL_DEVICES}
    replaced |= {
        _STANDS_FOR_GPU: True,
        "get_device_name": staticmethod(lambda *_: gpu.name),
        "get_device_total_memory": staticmethod(lambda *_: gpu.memory),
    }
    if cuda:
        capability = interface.DeviceCapability(*divmod(gpu.capability, 10))
        replaced |= {
            "_enum": interface.PlatformEnum.CUDA,
            # The settings' check counts the GPUs.
            "device_count": staticmethod(lambda: sys.maxsize),
            "get_device_capability": staticmethod(lambda **_: capability),
        }
    # All modules of vLLM's have the same object.
    with PLATFORM.replaced(platform, type(own.__name__, (own,), replaced)):
        yield


def configures_for_cpu() -> bool:
    """Return whether vLLM makes configurations for this machine's CPU."""
    platform = find("current_platform")
    return platform.is_cpu() and not hasattr(type(platform), _STANDS_FOR_GPU)


def cpu_memory() -> int:
    """Return the bytes of memory in which vLLM keeps an engine's weights and cache on a CPU."""
    from vllm.utils import cpu_resource_utils  # noqa: PLC0415 - as above

    (first, *_) = cpu_resource_utils.get_allowed_cpu_list()
    node = cpu_resource_utils.get_memory_node_info(first.numa_node)
    return int(min(memory_limit(), node.total_memory))


def _check_driver() -> None:
    """Check that the driver is new enough for the image's CUDA.

    Within one major version of CUDA an older driver runs what a newer toolkit has built. NVML is
    asked, so that no CUDA context is created.

    Raises:
        MachineUnfit: the driver is too old.
    """
    # Here, since it takes a second, and this module is imported before the ports are open.
    import torch  # noqa: PLC0415 - see above
    from vllm.utils.import_utils import import_pynvml  # noqa: PLC0415 - see above

    nvml = import_pynvml()
    try:
        nvml.nvmlInit()
        try:
            newest, name = nvml.nvmlSystemGetCudaDriverVersion(), nvml.nvmlSystemGetDriverVersion()
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        # Some GPUs have none. If it is broken, vLLM finds no GPU.
        return
    # NVML counts so: 12080 is 12.8.
    major, minor = newest // 1000, newest % 1000 // 10
    image = torch.version.cuda or "0"
    if major < int(image.partition(".")[0]):
        raise MachineUnfit(
            f"The GPU's driver {name} runs CUDA up to {major}.{minor}, and this image is built for "
            f"CUDA {image}: choose CUDA {image} or later for the endpoint's machines, or an image "
            "for an older CUDA"
        )


def this_machine() -> Machine:
    """Return what this machine has, without GPUs that ``CUDA_VISIBLE_DEVICES`` hides.

    Raises:
        MachineUnfit: vLLM finds nothing to run on, its driver is too old, or a library is missing.
    """
    platform = find("current_platform")
    if platform.is_unspecified():
        raise MachineUnfit("vLLM finds no GPU on this machine, and is not its CPU build")
    if platform.is_cpu():
        try:
            # The compiled part needs it, and vLLM itself goes on without that.
            ctypes.CDLL(_NUMA)
        except OSError as error:
            raise MachineUnfit(
                f"vLLM's CPU build needs {_NUMA}, and this machine does not have it: install it "
                "(Debian, Ubuntu: apt-get install libnuma1)"
            ) from error
        return Machine(cpu=True)
    # Not the driver of another maker's GPUs.
    if platform.is_cuda():
        _check_driver()
    gpus = (
        Gpu(platform.get_device_name(number), platform.get_device_total_memory(number))
        for number in range(platform.device_count())
    )
    return Machine(cpu=False, gpus=tuple(gpus))
