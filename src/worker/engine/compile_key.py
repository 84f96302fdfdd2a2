"""Keys of compiled code: equal on all workers that can use the same code."""

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

CPUS = Path("/proc/cpuinfo")
# The fields with the features of a processor, on x86 and on Arm.
_FEATURES = ("flags", "Features")


def key_of_models(models: Sequence[str]) -> str:
    """Return the key of what vLLM knows about models before it reads their configurations."""
    return _name([], [platform.python_version(), *models])


def key_of_engines(configurations: Sequence[Any], machine: Machine) -> str:
    """Return the key of the code that is compiled for engines.

    The configurations are vLLM's, before an engine starts. Its own cache uses hashes of the same
    things. They contain the path of the model, so the same model in another directory has another
    key.
    """
    gpus = [gpu.name for gpu in machine.gpus]
    devices = f"{len(gpus)}x-{'-'.join(dict.fromkeys(gpus))}" if gpus else "cpu"
    features = ""
    # Code for a CPU is compiled for its exact features; on a GPU the CPU doesn't matter.
    if machine.cpu and CPUS.is_file():
        lines = (line.partition(":") for line in CPUS.read_text().splitlines())
        # Those of the first processor: all of a machine have the same.
        features = next((text.strip() for name, _, text in lines if name.strip() in _FEATURES), "")
    variables = vllm.envs.compile_factors()
    return _name(
        [f"torch-{torch.__version__}", devices],
        [
            platform.python_version(),
            features,
            json.dumps(variables, sort_keys=True, default=str),
            *(configuration.compute_hash() for configuration in configurations),
        ],
    )


def _name(shown: Sequence[str], hashed: Sequence[str]) -> str:
    """Build a readable, unique file name: the words, then a hash of everything."""
    words = [f"vllm-{vllm.__version__}", *shown]
    digest = hashlib.sha256(json.dumps([*words, *hashed]).encode()).hexdigest()[:16]
    return "_".join([*(re.sub(r"[^\w.+-]+", "-", word) for word in words), digest])
