"""Chooses defaults for unset options that suit the machine and the model."""

import math
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.engine.machine import Machine
from worker.settings.environment import ChosenDefault, set_unset_variables
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.names import EMBEDDER_PREFIX
from worker.settings.values import is_directory

# Environment variables for a CPU; the second makes vLLM run the executor in the core's process.
CPU_EXPORTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

MEMORY_OPTION = "GPU_MEMORY_UTILIZATION"
# Shares of a GPU's memory: the total of all engines, and the embedder's share. An embedder has no
# cache that grows with its share, and most embedders are small.
TOTAL_GPU_SHARE = 0.95
EMBEDDER_GPU_SHARE = 0.1
DEFAULT_GPU_SHARES = {"": TOTAL_GPU_SHARE, EMBEDDER_PREFIX: EMBEDDER_GPU_SHARE}

# Options that divide an engine among GPUs. The product of ``PARALLEL_SIZES`` is the number of GPUs
# that the engine runs on.
OTHER_SIZES = ("PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE", "PREFILL_CONTEXT_PARALLEL_SIZE")
PARALLEL_SIZES = ("TENSOR_PARALLEL_SIZE", *OTHER_SIZES)

# The directory of a snapshot in a cache of the hub.
_SNAPSHOT = re.compile(r"/models--([^/]+)/snapshots/[^/]+$")

# Import path of the class that replaces vLLM's own worker class.
CPU_WORKER = "worker.engine.seam.cpu_worker.CPUWorker"

# By default, vLLM validates a request's schema with the backend that suits it, but compiles all
# schemas with the backend of the first request. An output may then violate its schema.
STRUCTURED_OUTPUTS_DEFAULT = ChosenDefault(
    "STRUCTURED_OUTPUTS_CONFIG", '{"backend": "xgrammar"}', "one backend checks and compiles"
)
MAX_MODEL_LEN_DEFAULT = ChosenDefault(
    "MAX_MODEL_LEN", "auto", "the longest context that fits into memory"
)


def choose_option_defaults(
    options: Mapping[str, str], machine: Machine, share: float
) -> list[ChosenDefault]:
    """Choose defaults for all but the operator's ``options``; ``share`` is of a GPU's memory.

    Those for a CPU start fast and run on any CPU. On a CPU, this also sets unset environment
    variables, and returns them among the defaults.
    """
    gpus, defaults = len(machine.gpus), list[ChosenDefault]()
    if machine.cpu:
        for name, value in set_unset_variables(CPU_EXPORTS).items():
            defaults.append(ChosenDefault(name, value, "no GPU"))
        for name, value, reason in (
            ("DTYPE", "float32", "bfloat16 is an illegal instruction on some CPUs"),
            ("ENFORCE_EAGER", "1", "there are no CUDA graphs to capture"),
            ("WORKER_CLS", CPU_WORKER, "vLLM's own crashes on a seed with a long prompt"),
        ):
            defaults.append(ChosenDefault(name, value, f"no GPU; {reason}"))
        if _multiply_parallel_sizes(options, PARALLEL_SIZES) == 1:
            reason = "one process starts fastest"
            defaults.append(ChosenDefault("DISTRIBUTED_EXECUTOR_BACKEND", "uni", reason))
    else:
        reason = "the worker has the GPU to itself"
        defaults.append(ChosenDefault(MEMORY_OPTION, f"{share:g}", reason))
        if gpus > 1:
            size = max(1, gpus // _multiply_parallel_sizes(options, OTHER_SIZES))
            reason = f"{gpus} GPUs in this machine"
            defaults.append(ChosenDefault("TENSOR_PARALLEL_SIZE", str(size), reason))
    defaults += [MAX_MODEL_LEN_DEFAULT, STRUCTURED_OUTPUTS_DEFAULT]
    return [default for default in defaults if default.name not in options]


def divide_gpu_memory(main: Mapping[str, str], embedder: Mapping[str, str]) -> dict[str, float]:
    """Divide a GPU's memory between two engines; return the shares by setting prefix.

    Each engine allocates its share at startup. Shares that total more than 1, or leave no memory
    for the main model, are a ``SettingsError``.
    """
    try:
        embedder_share = float(embedder.get(MEMORY_OPTION, EMBEDDER_GPU_SHARE))
        model_share = float(main.get(MEMORY_OPTION, TOTAL_GPU_SHARE - embedder_share))
    except ValueError:
        # vLLM's parser reports the wrong value, with the accepted values.
        return DEFAULT_GPU_SHARES
    if model_share <= 0 or model_share + embedder_share > 1:
        advice = (
            f"{MEMORY_OPTION}={model_share:g} of the model leaves too little for it: together they "
            "may have at most 1"
        )
        if embedder_share == EMBEDDER_GPU_SHARE and MEMORY_OPTION in main:
            advice = (
                f"the embedder's {embedder_share:g} leaves too little: together they may have at "
                "most 1"
            )
            example = f"{1 - embedder_share:g}"
            raise SettingsError([Mistake(MEMORY_OPTION, f"{model_share:g}", advice, example)])
        raise SettingsError(
            [Mistake(EMBEDDER_PREFIX + MEMORY_OPTION, f"{embedder_share:g}", advice)]
        )
    return {"": round(model_share, 6), EMBEDDER_PREFIX: embedder_share}


def served_model_names(options: Namespace) -> list[str]:
    """Return the names that a model is served under: the configured names, then its own name.

    The own name of a directory is the last part of its path, since callers must not see paths. That
    of a snapshot in a cache of the hub is the repository's name.
    """
    own_name = options.model
    if is_directory(own_name):
        # Symbolic links are not resolved because the operator chose their names.
        path = Path(os.path.abspath(own_name))  # noqa: PTH100 - Path.absolute keeps ".."
        repository = _SNAPSHOT.search(path.as_posix())
        own_name = repository[1].replace("--", "/") if repository else path.name
    return [*dict.fromkeys([*(options.served_model_name or ()), own_name])]


def choose_tensor_parallel_size(gpus: int, heads: int) -> int:
    """Return the largest size up to ``gpus`` that divides the number of attention heads."""
    return next(size for size in range(gpus, 0, -1) if heads % size == 0)


def _multiply_parallel_sizes(options: Mapping[str, str], sizes: Sequence[str]) -> int:
    """Return the product of an engine's parallel sizes; unset or invalid sizes count as 1."""
    values = (options.get(name, "") for name in sizes)
    return math.prod(max(1, int(value)) for value in values if value.isdecimal())
