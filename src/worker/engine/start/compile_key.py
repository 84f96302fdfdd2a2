"""Keys of compiled code, which are equal for all workers that can use the same code."""

import hashlib
import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import vllm
import vllm.envs

from worker.engine.machine import Machine

CPU_INFO = Path("/proc/cpuinfo")
# The /proc/cpuinfo fields with a processor's features, on x86 and on Arm.
_FEATURE_FIELDS = ("flags", "Features")


def model_info_cache_key(models: Sequence[str]) -> str:
    """Return the key of the information about model classes that vLLM needs to configure models."""
    return _build_key_name([], [platform.python_version(), *models])


def compiled_code_key(configurations: Sequence[Any], machine: Machine) -> str:
    """Return the cache key for the code that is compiled for engines.

    ``configurations`` are vLLM's, before an engine starts. The key covers the same data as the
    hashes of vLLM's own cache. That includes the model's path, so the same model in another
    directory has another key.
    """
    gpus = [gpu.name for gpu in machine.gpus]
    devices = f"{len(gpus)}x-{'-'.join(dict.fromkeys(gpus))}" if gpus else "cpu"
    features = ""
    # Code for a CPU is compiled for its exact features; on a GPU the CPU doesn't matter.
    if machine.cpu and CPU_INFO.is_file():
        lines = (line.partition(":") for line in CPU_INFO.read_text().splitlines())
        # All processors of a machine have the same features.
        features = next(
            (text.strip() for name, _, text in lines if name.strip() in _FEATURE_FIELDS), ""
        )
    variables = vllm.envs.compile_factors()
    return _build_key_name(
        [f"torch-{torch.__version__}", devices],
        [
            platform.python_version(),
            features,
            json.dumps(variables, sort_keys=True, default=str),
            *(configuration.compute_hash() for configuration in configurations),
        ],
    )


def _build_key_name(readable: Sequence[str], hashed: Sequence[str]) -> str:
    words = [f"vllm-{vllm.__version__}", *readable]
    digest = hashlib.sha256(json.dumps([*words, *hashed]).encode()).hexdigest()[:16]
    return "_".join([*(re.sub(r"[^\w.+-]+", "-", word) for word in words), digest])
