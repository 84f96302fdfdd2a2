"""Fits engines to the memory: warnings of a shorter context, and arguments for a second attempt."""

import math

from worker.engine.arguments import EngineArguments
from worker.engine.options.automatic import MEMORY_OPTION
from worker.engine.run.healing.core import CoreFailed
from worker.engine.seam.translation import is_out_of_memory
from worker.errors import StartFailed
from worker.settings.environment import process_environ

MAX_NUM_SEQS = "MAX_NUM_SEQS"
NUM_GPU_BLOCKS_OVERRIDE = "NUM_GPU_BLOCKS_OVERRIDE"
CPU_KVCACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"

# Factor for the GPU's memory share, and divisor for MAX_NUM_SEQS, in the second attempt.
MEMORY_FACTOR = 0.9
SEQUENCES_DIVISOR = 4
RETRY_REASON = "the memory was full at the first try"


def with_less_memory(arguments: EngineArguments, error: Exception) -> EngineArguments | None:
    """Return arguments for a second attempt that uses less memory.

    Returns None if the first attempt had enough memory, if the weights alone were too large, or if
    no unset option can be reduced.
    """
    weights_too_large = isinstance(error, CoreFailed) and error.loader_function
    if weights_too_large or not is_out_of_memory(str(error)):
        return None
    reduced, config = arguments, arguments.config
    if (
        MEMORY_OPTION not in arguments.operator_options
        and config.device_config.device_type != "cpu"
    ):
        share = round(arguments.vllm_args.gpu_memory_utilization * MEMORY_FACTOR, 3)
        reduced = reduced.with_chosen_value(MEMORY_OPTION, share, RETRY_REASON)
    sequences = max(1, config.scheduler_config.max_num_seqs // SEQUENCES_DIVISOR)
    if (
        MAX_NUM_SEQS not in arguments.operator_options
        and sequences < config.scheduler_config.max_num_seqs
    ):
        reduced = reduced.with_chosen_value(MAX_NUM_SEQS, sequences, RETRY_REASON)
    return None if reduced is arguments else reduced


def short_context_warning(
    arguments: EngineArguments, model_context: int, min_context: int
) -> str | None:
    """Return a warning if the memory is too small for the model's full context; None otherwise.

    Args:
        arguments: The started engine's.
        model_context: The length in tokens before vLLM fitted it to the memory.
        min_context: The setting MIN_MODEL_LEN.

    Raises:
        StartFailed: The context of the main model is below the minimum.
    """
    fitted_context = arguments.config.model_config.max_model_len
    if fitted_context >= model_context:
        return None
    advice = _longer_context_advice(arguments, model_context / fitted_context)
    name = arguments.vllm_args.served_model_name[0]
    if arguments.prefix == "" and fitted_context < min(min_context, model_context):
        raise StartFailed(
            f"The longest context of {name} that fits into memory has {fitted_context:,} tokens, "
            f"less than MIN_MODEL_LEN={min_context}; the model's own has {model_context:,}. "
            f"For a longer one, {advice}."
        )
    context = f"{arguments.prefix}MAX_MODEL_LEN"
    return (
        f"{name}: the context has {fitted_context:,} of the model's {model_context:,} tokens, as "
        f"many as fit into memory: for all of them, {advice}; with {context} set, a start fails if "
        "that length does not fit"
    )


def _longer_context_advice(arguments: EngineArguments, factor: float) -> str:
    """Return advice on how to fit a context into the memory that is longer by a factor."""
    if NUM_GPU_BLOCKS_OVERRIDE in arguments.operator_options:
        return f"leave {NUM_GPU_BLOCKS_OVERRIDE} unset"
    if arguments.config.device_config.device_type == "cpu":
        space = int(process_environ().get(CPU_KVCACHE_SPACE) or 1)
        return f"set {CPU_KVCACHE_SPACE}={math.ceil(space * factor)}"
    return "use GPUs with more memory, or more GPUs, or set KV_CACHE_DTYPE=fp8"
