"""What is chosen for options that the operator left open, by the machine and the model."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.engine.machine import Machine
from worker.settings.environment import Default, export
from worker.settings.values import directory

# Of a GPU's memory, where vLLM's own default does not suit a worker.
GPU_SHARE = 0.95
# vLLM takes the executor inside the core's process on a CPU only if the second variable is 0.
CPU_EXPORTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def automatic(given: Mapping[str, str], on: Machine, gpu_share: float) -> list[Default]:
    """Choose what the operator left open.

    Args:
        given: the options that the operator set.
        on: what the engine will run on.
        gpu_share: of a GPU's memory.
    """
    chosen = [*(_for_cpu(given) if on.cpu else _for_gpus(given, on, gpu_share))]
    return [choice for choice in chosen if choice.name not in given]


def served_names(arguments: Namespace) -> list[str]:
    """Serve a model by its own name, too, behind those that the operator gave it.

    Callers name a model; a path of this machine is none of their business.
    """
    model = arguments.model
    own = Path(model).resolve().name if directory(model) else model
    return [*dict.fromkeys([*(arguments.served_model_name or ()), own])]


def fitting_tensor_parallel_size(gpus: int, config: Any) -> int:
    """Find the largest number of GPUs that a model's attention heads can be divided among.

    Args:
        gpus: how many there are.
        config: vLLM's configuration of the model.
    """
    heads = getattr(config.hf_text_config, "num_attention_heads", None) or gpus
    return next(size for size in range(gpus, 0, -1) if heads % size == 0)


def _for_cpu(given: Mapping[str, str]) -> list[Default]:
    """Choose what starts fast and runs anywhere."""
    written = export(CPU_EXPORTS)
    choices = [
        *(Default(name, value, "no GPU") for name, value in written.items()),
        Default("DTYPE", "float32", "no GPU; bfloat16 is an illegal instruction on some CPUs"),
        Default("ENFORCE_EAGER", "1", "no GPU; there are no CUDA graphs to capture"),
    ]
    if _elsewhere(given) == 1 == _size(given, "TENSOR_PARALLEL_SIZE"):
        choices.append(Default("DISTRIBUTED_EXECUTOR_BACKEND", "uni", "one process starts fastest"))
    return choices


def _for_gpus(given: Mapping[str, str], on: Machine, share: float) -> list[Default]:
    choices = [Default("GPU_MEMORY_UTILIZATION", f"{share:g}", "the worker has the GPU for itself")]
    if len(on.gpus) > 1:
        size = max(1, len(on.gpus) // _elsewhere(given))
        choices.append(Default("TENSOR_PARALLEL_SIZE", str(size), f"{len(on.gpus)} GPUs are there"))
    return choices


def _elsewhere(given: Mapping[str, str]) -> int:
    """Count the ways in which GPUs are used beside tensor parallelism."""
    names = ("PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE", "PREFILL_CONTEXT_PARALLEL_SIZE")
    several = 1
    for name in names:
        several *= _size(given, name)
    return several


def _size(given: Mapping[str, str], name: str) -> int:
    value = given.get(name, "1")
    return max(1, int(value)) if value.isdecimal() else 1
