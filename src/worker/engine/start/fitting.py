"""A start that fits the memory: the longest context that it holds, and a second try with less."""

import math
from typing import Any

from worker.engine.arguments import EngineArguments
from worker.engine.options.automatic import SHARE
from worker.engine.seam.translation import is_out_of_memory
from worker.errors import StartFailed
from worker.settings.environment import process_environ

SEQUENCES = "MAX_NUM_SEQS"
BLOCKS = "NUM_GPU_BLOCKS_OVERRIDE"
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"

# Of the first try's, in the second.
LESS_SHARE = 0.9
FEWER_SEQUENCES = 4
REASON = "the memory was full at the first try"


def with_less(arguments: EngineArguments, config: Any, reason: str) -> EngineArguments | None:
    """Return the arguments for a second try with less memory, if the first was short of it.

    None if it was not, or if the operator has set all that could be less.
    """
    if not is_out_of_memory(reason):
        return None
    less = arguments
    if SHARE not in arguments.given and config.device_config.device_type != "cpu":
        share = round(arguments.vllm.gpu_memory_utilization * LESS_SHARE, 3)
        less = less.with_default(SHARE, share, REASON)
    sequences = max(1, config.scheduler_config.max_num_seqs // FEWER_SEQUENCES)
    if SEQUENCES not in arguments.given and sequences < config.scheduler_config.max_num_seqs:
        less = less.with_default(SEQUENCES, sequences, REASON)
    return None if less is arguments else less


def told(arguments: EngineArguments, config: Any, own: int, floor: int) -> str | None:
    """Return what to log where the memory holds less than the model's context; None: all of it.

    ``config`` is vLLM's, once the engine has started, ``own`` the model's context, and ``floor``
    MIN_MODEL_LEN.

    Raises:
        StartFailed: the context is below the floor.
    """
    fitted = config.model_config.max_model_len
    if fitted >= own:
        return None
    more = _more_memory(arguments, config, own / fitted)
    name = arguments.vllm.served_model_name[0]
    if arguments.prefix == "" and fitted < min(floor, own):
        raise StartFailed(
            f"The memory holds a context of {fitted:,} tokens for {name}, less than "
            f"MIN_MODEL_LEN={floor}; the model's own is {own:,}. For more of it: {more}."
        )
    context = f"{arguments.prefix}MAX_MODEL_LEN"
    return (
        f"{name}: a context of {fitted:,} tokens, which the memory holds, of the model's {own:,}: "
        f"for all of it, {more}; set {context} for a start that fails where it does not fit"
    )


def _more_memory(arguments: EngineArguments, config: Any, factor: float) -> str:
    """Return how the cache gets larger by a factor, or what a token takes of it smaller."""
    if BLOCKS in arguments.given:
        return f"leave {BLOCKS} unset"
    if config.device_config.device_type == "cpu":
        space = int(process_environ().get(CPU_SPACE) or 1)
        return f"set {CPU_SPACE}={math.ceil(space * factor)}"
    return "take GPUs with more memory, or more of them, or set KV_CACHE_DTYPE=fp8"
