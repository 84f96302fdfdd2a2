"""Estimates the memory for a training, and checks that it is free."""

import json
import shutil
import subprocess
from typing import NamedTuple

from worker.errors import InvalidInput
from worker.fine_tunes.spec import Spec
from worker.process.memory import (
    FLOAT32_BYTES,
    GIB,
    OPTIMIZER_BYTES,
    PROCESS_BYTES,
    WEIGHT_BYTES,
    ModelSizes,
    free_memory_bytes,
    memory_limit,
)
from worker.settings.environment import first_visible_gpu
from worker.store.disk import count_elements

CONFIG = "config.json"
# Tokens of the row in the estimate. A training is refused only if not even this row fits into
# memory; longer rows may fail later.
MIN_ROW_TOKENS = 256


class DeviceMemory(NamedTuple):
    """Free and total memory in bytes of the device that trains."""

    free: int
    total: int


class MemoryInUse(InvalidInput):
    """The device has enough memory for a training, but too much of it is in use."""


def check_memory(spec: Spec, available: DeviceMemory | None = None) -> None:
    """Refuse a training that can't fit into the free memory, unless a size is unknown.

    ``available`` is the device's memory, which is measured if it is None.

    Raises:
        MemoryInUse: Too much memory is in use now.
        InvalidInput: The device has too little memory; the message says how to change that.
    """
    available = available or device_memory(spec.device)
    needed = needed_bytes(spec)
    if available is None or needed is None or needed <= available.free:
        return
    device = "GPU" if spec.device == "cuda" else "machine"
    is_in_use = needed <= available.total
    error, limit = (MemoryInUse, available.free) if is_in_use else (InvalidInput, available.total)
    raise error(
        f"The training needs at least {needed / GIB:.1f} GiB of memory, and this {device} has "
        f"{limit / GIB:.1f} GiB{' left' if is_in_use else ''}. A worker that is started with "
        "--train, on an endpoint of its own with the same volume, shares it with no engine; a "
        "smaller r in peft_config, or a smaller model, needs less."
    )


def needed_bytes(spec: Spec) -> int | None:
    """Return the minimum memory of a training in bytes; None if the model's files lack the data."""
    try:
        elements, _ = count_elements([*spec.model.glob("*.safetensors")])
        config = json.loads((spec.model / CONFIG).read_bytes())
        sizes = ModelSizes.model_validate(config.get("text_config", config))
    except (OSError, ValueError, AttributeError):
        return None
    weights = elements.total() if elements else 0
    if not weights:
        return None
    row = min(spec.max_length, MIN_ROW_TOKENS) * sizes.token_bytes(recompute=True)
    fixed = weights * WEIGHT_BYTES[spec.device] + PROCESS_BYTES[spec.device]
    return (
        fixed + sizes.adapter_parameter_count(spec.lora.r) * (FLOAT32_BYTES + OPTIMIZER_BYTES) + row
    )


def device_memory(device: str) -> DeviceMemory | None:
    """Return the memory of the device that trains; None if it is unknown."""
    return _gpu_memory() if device == "cuda" else DeviceMemory(free_memory_bytes(), memory_limit())


def _gpu_memory() -> DeviceMemory | None:
    """Return the GPU's memory from ``nvidia-smi``, because this process must not use CUDA."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    # The trainer uses one GPU, the first that is visible to it.
    gpu_option = () if (gpu := first_visible_gpu()) is None else ("-i", gpu)
    query = "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"
    command = (tool, *gpu_option, *query)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        free, total = result.stdout.splitlines()[0].split(",")
        return DeviceMemory(int(free) * 2**20, int(total) * 2**20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
