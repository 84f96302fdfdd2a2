"""What compiled code depends on, as a name: the same on each worker that can use it."""

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
# As x86 and Arm list what a processor can do.
_ABILITIES = ("flags", "Features")


def of_models(models: Sequence[str]) -> str:
    """Name what vLLM knows of models before it has read their configuration.

    Args:
        models: directories or repositories.
    """
    return _name([], [platform.python_version(), *models])


def of_configurations(configurations: Sequence[Any], on: Machine) -> str:
    """Name what is compiled for engines.

    vLLM looks its cache up by hashes of the same things. They hold the path of the model, so a copy
    of it in another directory is another model.

    Args:
        configurations: vLLM's, as ``create_engine_config`` makes them, before an engine starts.
        on: what the engines run on.
    """
    torch_is = f"torch-{torch.__version__}"
    gpus = [gpu.name for gpu in on.gpus]
    machine = f"{len(gpus)}x-{'-'.join(dict.fromkeys(gpus))}" if gpus else "cpu"
    # Kernels for a CPU are compiled for the very one; those for a GPU do not care.
    abilities = _abilities(CPUS.read_text()) if on.cpu and CPUS.is_file() else ""
    variables = vllm.envs.compile_factors()
    return _name(
        [torch_is, machine],
        [
            platform.python_version(),
            abilities,
            json.dumps(variables, sort_keys=True, default=str),
            *(configuration.compute_hash() for configuration in configurations),
        ],
    )


def _name(told: Sequence[str], hashed: Sequence[str]) -> str:
    """Make a file's name that can be read, and is another one for everything that is another."""
    words = [f"vllm-{vllm.__version__}", *told]
    digest = hashlib.sha256(json.dumps([*words, *hashed]).encode()).hexdigest()[:16]
    return "_".join([*(re.sub(r"[^\w.+-]+", "-", word) for word in words), digest])


def _abilities(cpus: str) -> str:
    """Read what the first processor can do; all of a machine can do the same."""
    lines = (line.partition(":") for line in cpus.splitlines())
    return next((told.strip() for name, _, told in lines if name.strip() in _ABILITIES), "")
