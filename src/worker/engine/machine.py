"""Detects the machine's GPUs, and simulates GPUs that the machine doesn't have.

GPUs are detected through the driver, so that no CUDA context is created.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.patches import PLATFORM
from worker.errors import MachineUnfit
from worker.process.memory import memory_limit

_NUMA = "libnuma.so.1"
# Methods that vLLM's CPU platform overrides, and whose versions in the base class apply to other
# devices, including CUDA.
_DEVICE_INDEPENDENT_RULES = (
    "check_and_update_config",
    "supported_dtypes",
    "update_block_size_for_backend",
)
# Marker attribute of the platform classes that ``simulate_gpu`` creates.
_SIMULATES_GPU = "_simulates_gpu"


@dataclass(frozen=True)
class Gpu:
    """A GPU; ``memory`` is in bytes, ``capability`` is CUDA's, such as 89 for 8.9."""

    name: str
    memory: int
    capability: int = 0


@dataclass(frozen=True)
class Machine:
    """The machine that engines run on."""

    cpu: bool  # the installed vLLM is its CPU build
    gpus: tuple[Gpu, ...] = ()
    # The operator's name of the GPUs, such as ``ADA_24``, if this is not the machine that runs this
    # code; else empty.
    gpu_choice: str = ""


@contextlib.contextmanager
def simulate_gpu(gpu: Gpu, *, as_cuda: bool = False) -> Iterator[None]:
    """Make vLLM create configurations as on a GPU that this machine doesn't have.

    With ``as_cuda``, vLLM's platform also identifies itself as CUDA. Modules that are imported
    during the block would then look for GPU kernels.
    """
    from vllm.platforms import interface  # noqa: PLC0415 - not before the ports are open

    platform = import_from_vllm("current_platform")
    platform_class, base_attributes = type(platform), vars(interface.Platform)
    replacements: dict[str, Any] = {
        name: base_attributes[name] for name in _DEVICE_INDEPENDENT_RULES
    }
    replacements |= {
        _SIMULATES_GPU: True,
        "get_device_name": staticmethod(lambda *_: gpu.name),
        "get_device_total_memory": staticmethod(lambda *_: gpu.memory),
    }
    if platform.is_cpu():
        # Since vLLM 0.33, some CPUs refuse data types of a cache that GPUs have.
        replacements["get_attn_backend_cls"] = staticmethod(
            lambda backend, attn_selector_config, **others: platform_class.get_attn_backend_cls(
                backend, attn_selector_config._replace(kv_cache_dtype=None), **others
            )
        )
    if as_cuda:
        capability = interface.DeviceCapability(*divmod(gpu.capability, 10))
        replacements |= {
            "_enum": interface.PlatformEnum.CUDA,
            # vLLM's check of settings counts the GPUs and must find enough.
            "device_count": staticmethod(lambda: sys.maxsize),
            "get_device_capability": staticmethod(lambda **_: capability),
        }
    # All modules of vLLM share one platform object, so replacing its class affects all of them.
    with PLATFORM.replace_temporarily(
        platform, type(platform_class.__name__, (platform_class,), replacements)
    ):
        yield


def configures_for_cpu() -> bool:
    """Return whether vLLM currently creates configurations for this machine's CPU."""
    platform = import_from_vllm("current_platform")
    return platform.is_cpu() and not hasattr(type(platform), _SIMULATES_GPU)


def engine_ram_limit() -> int:
    """Return the bytes of memory that are available to an engine's weights and cache on a CPU."""
    from vllm.utils import cpu_resource_utils  # noqa: PLC0415 - not before the ports are open

    (first, *_) = cpu_resource_utils.get_allowed_cpu_list()
    node = cpu_resource_utils.get_memory_node_info(first.numa_node)
    return int(min(memory_limit(), node.total_memory))


def _check_driver_version() -> None:
    """Check that the driver is new enough for the image's CUDA version.

    Within a major version of CUDA, an older driver can run code that a newer toolkit built. NVML
    reports the driver's version without creating a CUDA context.
    """
    # Importing torch takes a second, and this module is imported before the ports are open.
    import torch  # noqa: PLC0415 - see above
    from vllm.utils.import_utils import import_pynvml  # noqa: PLC0415 - see above

    nvml = import_pynvml()
    try:
        nvml.nvmlInit()
        try:
            newest_cuda, driver = (
                nvml.nvmlSystemGetCudaDriverVersion(),
                nvml.nvmlSystemGetDriverVersion(),
            )
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        # Some GPUs have no NVML. If NVML is broken, vLLM finds no GPU.
        return
    # NVML's version numbers: 12080 is 12.8.
    major, minor = newest_cuda // 1000, newest_cuda % 1000 // 10
    image = torch.version.cuda or "0"
    if major < int(image.partition(".")[0]):
        raise MachineUnfit(
            f"The GPU's driver {driver} runs CUDA up to {major}.{minor}, and this image is built "
            f"for CUDA {image}: choose CUDA {image} or later for the endpoint's machines, or an "
            "image for an older CUDA"
        )


def detect_machine() -> Machine:
    """Return this machine, without GPUs that ``CUDA_VISIBLE_DEVICES`` hides.

    ``MachineUnfit`` is raised if vLLM finds no device, the driver is too old, or a library is
    missing.
    """
    platform = import_from_vllm("current_platform")
    if platform.is_unspecified():
        raise MachineUnfit("vLLM finds no GPU on this machine, and this is not its CPU build")
    if platform.is_cpu():
        try:
            # vLLM's compiled extension needs libnuma, but vLLM continues without the extension.
            ctypes.CDLL(_NUMA)
        except OSError as error:
            raise MachineUnfit(
                f"vLLM's CPU build needs {_NUMA}, and this machine does not have it: install it "
                "(Debian, Ubuntu: apt-get install libnuma1)"
            ) from error
        return Machine(cpu=True)
    # The check is for NVIDIA's driver only.
    if platform.is_cuda():
        _check_driver_version()
    gpus = (
        Gpu(platform.get_device_name(number), platform.get_device_total_memory(number))
        for number in range(platform.device_count())
    )
    return Machine(cpu=False, gpus=tuple(gpus))
