"""The worker's defaults for options that are unset, by the machine and the model."""

import math
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.settings.environment import Default, export
from worker.settings.values import is_directory

# Variables for a CPU. vLLM runs the executor inside the core's process only if the second is 0.
CPU_EXPORTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

# By its name, since it is vLLM that imports it.
CPU_WORKER = "worker.engine.seam.cpu_worker.CPUWorker"

RENDERERS = "RENDERER_NUM_WORKERS"

# vLLM's own default checks each request with the backend that takes it, and holds all of them to
# the backend of the first: an answer may then be one that its schema forbids.
ONE_BACKEND = Default(
    "STRUCTURED_OUTPUTS_CONFIG", '{"backend": "xgrammar"}', "one backend checks and compiles"
)
LONGEST = Default("MAX_MODEL_LEN", "auto", "the longest text that the memory holds")


def automatic(given: Mapping[str, str], machine: Machine, gpu_share: float) -> list[Default]:
    """Choose the defaults of options that are unset.

    Args:
        given: the options that the operator set.
        machine: what the engine will run on.
        gpu_share: share of a GPU's memory.
    """
    defaults = _for_cpu(given) if machine.cpu else _for_gpus(given, len(machine.gpus), gpu_share)
    defaults += [LONGEST, ONE_BACKEND]
    return [default for default in defaults if default.name not in given]


def served_names(options: Namespace) -> list[str]:
    """Return the names that a model is served by: those that are set, then its own.

    A directory's own name is its last part: callers don't see paths of the machine.
    """
    model = options.model
    # Without links being followed: their names are the operator's choice.
    own = Path(os.path.abspath(model)).name if is_directory(model) else model  # noqa: PTH100 - Path.absolute keeps ".."
    return [*dict.fromkeys([*(options.served_model_name or ()), own])]


def fitting_tensor_parallel_size(gpus: int, heads: int) -> int:
    """Return the largest number of GPUs that divides a model's attention heads.

    Args:
        gpus: how many there are.
        heads: the model's attention heads; 0 if it has none.
    """
    return next(size for size in range(gpus, 0, -1) if heads % size == 0)


def with_renderer_workers(arguments: EngineArguments, model_config: Any) -> EngineArguments:
    """Let vLLM tokenize in two threads, so that long texts never have all of them.

    Args:
        arguments: of an engine.
        model_config: vLLM's, made of them, which is changed likewise. vLLM refuses several threads
            for models that embed or rank what they see: their cache takes one.
    """
    pools_media = model_config.runner_type == "pooling" and model_config.multimodal_config
    if RENDERERS in arguments.given or model_config.skip_tokenizer_init or pools_media:
        return arguments
    model_config.renderer_num_workers = 2
    return arguments.with_default(Default(RENDERERS, "2", "one of them is free of long texts"), 2)


def _for_cpu(given: Mapping[str, str]) -> list[Default]:
    """Choose what starts fast and runs on any CPU."""
    written = export(CPU_EXPORTS)
    defaults = [
        *(Default(name, value, "no GPU") for name, value in written.items()),
        Default("DTYPE", "float32", "no GPU; bfloat16 is an illegal instruction on some CPUs"),
        Default("ENFORCE_EAGER", "1", "no GPU; there are no CUDA graphs to capture"),
        Default("WORKER_CLS", CPU_WORKER, "no GPU; vLLM's own dies of a seed with a long prompt"),
    ]
    if _other_parallelism(given) == 1 == _size(given, "TENSOR_PARALLEL_SIZE"):
        reason = "one process starts fastest"
        defaults.append(Default("DISTRIBUTED_EXECUTOR_BACKEND", "uni", reason))
    return defaults


def _for_gpus(given: Mapping[str, str], gpus: int, share: float) -> list[Default]:
    reason = "the worker has the GPU for itself"
    defaults = [Default("GPU_MEMORY_UTILIZATION", f"{share:g}", reason)]
    if gpus > 1:
        size = max(1, gpus // _other_parallelism(given))
        defaults.append(Default("TENSOR_PARALLEL_SIZE", str(size), f"{gpus} GPUs are there"))
    return defaults


def _other_parallelism(given: Mapping[str, str]) -> int:
    """Return how many GPUs each part of a model needs without tensor parallelism."""
    names = ("PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE", "PREFILL_CONTEXT_PARALLEL_SIZE")
    return math.prod(_size(given, name) for name in names)


def _size(given: Mapping[str, str], name: str) -> int:
    value = given.get(name, "1")
    return max(1, int(value)) if value.isdecimal() else 1
