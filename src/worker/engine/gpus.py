"""Checks what engines ask of the machine: how many GPUs, and which shares of their memory."""

import math
from argparse import Namespace
from collections.abc import Iterator, Mapping

from worker.engine.machine import Machine
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.names import EMBEDDER

SHARE = "GPU_MEMORY_UTILIZATION"
# Shares of a GPU's memory: of all engines together, and of an embedder. An embedder has no cache
# that grows with its share, and most are small.
GPU_SHARE = 0.95
EMBEDDER_SHARE = 0.1


def divide_memory(main: Mapping[str, str], embedder: Mapping[str, str]) -> tuple[float, float]:
    """Divide a GPU's memory between two engines, each of which takes its share at the start.

    Args:
        main: options that are set for the model.
        embedder: options that are set for the embedder.

    Returns:
        The model's share and the embedder's.

    Raises:
        SettingsError: the shares that are set leave too little.
    """
    try:
        embedders = float(embedder.get(SHARE, EMBEDDER_SHARE))
        share = float(main.get(SHARE, GPU_SHARE - embedders))
    except ValueError:
        # vLLM's parser reports it, with what is accepted.
        return GPU_SHARE, EMBEDDER_SHARE
    if share <= 0 or share + embedders > 1:
        advice = f"with {SHARE}={share:g} for the model there is no room for it: at most 1 together"
        if embedders == EMBEDDER_SHARE and SHARE in main:
            advice = f"with {embedders:g} for the embedder there is not enough: at most 1 together"
            example = f"{1 - embedders:g}"
            raise SettingsError([Mistake(SHARE, f"{share:g}", advice, example)])
        raise SettingsError([Mistake(EMBEDDER + SHARE, f"{embedders:g}", advice)])
    return round(share, 6), embedders


def too_many(options: Namespace, given: Mapping[str, str], machine: Machine) -> Iterator[Mistake]:
    """Check that there are as many GPUs as an engine is to run on.

    Args:
        options: vLLM's arguments.
        given: the options that the operator set.
        machine: what the engine will run on.
    """
    sizes = {
        "TENSOR_PARALLEL_SIZE": options.tensor_parallel_size,
        "PIPELINE_PARALLEL_SIZE": options.pipeline_parallel_size,
        "DATA_PARALLEL_SIZE": options.data_parallel_size,
        "PREFILL_CONTEXT_PARALLEL_SIZE": options.prefill_context_parallel_size,
    }
    wanted, gpus = math.prod(sizes.values()), len(machine.gpus)
    if machine.cpu or wanted <= gpus:
        return
    there = {0: "there is no GPU", 1: "there is 1 GPU"}.get(gpus, f"there are {gpus} GPUs")
    for name, size in sizes.items():
        if size > 1:
            advice = f"{there}, and {wanted} would be needed; unset, it is what fits"
            fits = max(gpus * size // wanted, 1)
            yield Mistake(name, given.get(name, str(size)), advice, str(fits))
