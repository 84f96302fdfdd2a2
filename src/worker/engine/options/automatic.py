"""The worker's defaults for options that are unset, by the machine and the model."""

import math
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.engine.machine import Machine
from worker.settings.environment import Default, export
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.names import EMBEDDER
from worker.settings.values import is_directory

# Variables for a CPU. vLLM runs the executor inside the core's process only if the second is 0.
CPU_EXPORTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

SHARE = "GPU_MEMORY_UTILIZATION"
# Shares of a GPU's memory: of all engines together, and of an embedder. An embedder has no cache
# that grows with its share, and most are small.
GPU_SHARE = 0.95
EMBEDDER_SHARE = 0.1
SHARES = {"": GPU_SHARE, EMBEDDER: EMBEDDER_SHARE}

# Options whose product is the number of GPUs that an engine runs on.
OTHER_SIZES = ("PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE", "PREFILL_CONTEXT_PARALLEL_SIZE")
SIZES = ("TENSOR_PARALLEL_SIZE", *OTHER_SIZES)

# By its name, since it is vLLM that imports it.
CPU_WORKER = "worker.engine.seam.cpu_worker.CPUWorker"

# vLLM's own default checks each request with the backend that takes it, and holds all of them to
# the backend of the first: an answer may then be one that its schema forbids.
ONE_BACKEND = Default(
    "STRUCTURED_OUTPUTS_CONFIG", '{"backend": "xgrammar"}', "one backend checks and compiles"
)
LONGEST = Default("MAX_MODEL_LEN", "auto", "the longest text that the memory holds")


def automatic(given: Mapping[str, str], machine: Machine, gpu_share: float) -> list[Default]:
    """Choose the defaults of the options that are not given, for an engine on this machine."""
    defaults = _for_cpu(given) if machine.cpu else _for_gpus(given, len(machine.gpus), gpu_share)
    defaults += [LONGEST, ONE_BACKEND]
    return [default for default in defaults if default.name not in given]


def divide_memory(main: Mapping[str, str], embedder: Mapping[str, str]) -> dict[str, float]:
    """Divide a GPU's memory between two engines, each of which takes its share at the start.

    Return the shares of the model and of the embedder, by the prefix of their settings' names.

    Raises:
        SettingsError: the shares that are set leave too little.
    """
    try:
        embedders = float(embedder.get(SHARE, EMBEDDER_SHARE))
        share = float(main.get(SHARE, GPU_SHARE - embedders))
    except ValueError:
        # vLLM's parser reports it, with what is accepted.
        return SHARES
    if share <= 0 or share + embedders > 1:
        advice = f"with {SHARE}={share:g} for the model there is no room for it: at most 1 together"
        if embedders == EMBEDDER_SHARE and SHARE in main:
            advice = f"with {embedders:g} for the embedder there is not enough: at most 1 together"
            example = f"{1 - embedders:g}"
            raise SettingsError([Mistake(SHARE, f"{share:g}", advice, example)])
        raise SettingsError([Mistake(EMBEDDER + SHARE, f"{embedders:g}", advice)])
    return {"": round(share, 6), EMBEDDER: embedders}


def served_names(options: Namespace) -> list[str]:
    """Return the names that a model is served by: those that are set, then its own.

    A directory's own name is its last part: callers don't see paths of the machine.
    """
    model = options.model
    # Without links being followed: their names are the operator's choice.
    own = Path(os.path.abspath(model)).name if is_directory(model) else model  # noqa: PTH100 - Path.absolute keeps ".."
    return [*dict.fromkeys([*(options.served_model_name or ()), own])]


def fitting_tensor_parallel_size(gpus: int, heads: int) -> int:
    """Return the largest number of these GPUs that divides a model's attention heads, if any."""
    return next(size for size in range(gpus, 0, -1) if heads % size == 0)


def _for_cpu(given: Mapping[str, str]) -> list[Default]:
    """Choose what starts fast and runs on any CPU."""
    written = export(CPU_EXPORTS)
    defaults = [
        *(Default(name, value, "no GPU") for name, value in written.items()),
        Default("DTYPE", "float32", "no GPU; bfloat16 is an illegal instruction on some CPUs"),
        Default("ENFORCE_EAGER", "1", "no GPU; there are no CUDA graphs to capture"),
        Default("WORKER_CLS", CPU_WORKER, "no GPU; vLLM's own dies of a seed with a long prompt"),
    ]
    if _gpus_needed(given, SIZES) == 1:
        reason = "one process starts fastest"
        defaults.append(Default("DISTRIBUTED_EXECUTOR_BACKEND", "uni", reason))
    return defaults


def _for_gpus(given: Mapping[str, str], gpus: int, share: float) -> list[Default]:
    reason = "the worker has the GPU for itself"
    defaults = [Default(SHARE, f"{share:g}", reason)]
    if gpus > 1:
        size = max(1, gpus // _gpus_needed(given, OTHER_SIZES))
        defaults.append(Default("TENSOR_PARALLEL_SIZE", str(size), f"{gpus} GPUs are there"))
    return defaults


def _gpus_needed(given: Mapping[str, str], sizes: Sequence[str]) -> int:
    """Return how many GPUs an engine needs by some of its sizes; unset and other ones are 1."""
    values = (given.get(name, "") for name in sizes)
    return math.prod(max(1, int(value)) for value in values if value.isdecimal())
