"""Arguments of an engine's constructor, which a running endpoint has had already."""

import warnings
from collections.abc import Mapping
from typing import Any

from llm_worker_client.deploy.settings import LISTING

# TACO-LLM's and vLLM's, each with the default that asks for nothing.
DEFAULTS: Mapping[str, Any] = {
    "tokenizer": None,
    "tokenizer_mode": "auto",
    "skip_tokenizer_init": False,
    "trust_remote_code": False,
    "tensor_parallel_size": 1,
    "dtype": "auto",
    "quantization": None,
    "revision": None,
    "tokenizer_revision": None,
    "seed": 0,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4,
    "cpu_offload_gb": 0,
    "enforce_eager": None,
    "max_context_len_to_capture": None,
    "max_seq_len_to_capture": 8192,
    "disable_custom_all_reduce": False,
    "disable_async_output_proc": False,
}
# They say how an engine uses its machine: the same answers come without them.
_OF_THE_MACHINE = frozenset(
    """
    cpu_offload_gb disable_async_output_proc disable_custom_all_reduce disable_log_stats
    enable_prefix_caching enforce_eager gpu_memory_utilization max_context_len_to_capture
    max_num_batched_tokens max_num_seqs max_seq_len_to_capture pipeline_parallel_size swap_space
    tensor_parallel_size
    """.split()
)
_RENAMED = {"tokenizer": "TOKENIZER_NAME"}


def check(arguments: Mapping[str, Any]) -> None:
    """Check what a script asks of an engine.

    Args:
        arguments: what it passes beyond the endpoint and its key.

    Raises:
        ValueError: an argument would change the answers: the endpoint is what it is.
        TypeError: neither an engine nor this class has it.
    """
    for name, value in arguments.items():
        setting = _RENAMED.get(name, name.upper())
        if name not in DEFAULTS and name not in _OF_THE_MACHINE and setting not in LISTING.known:
            doubt = LISTING.doubt(setting)
            raise TypeError(f"LLM: {doubt or f'there is no argument {name!r}'}")
        if name in DEFAULTS and value in (DEFAULTS[name], None):
            continue
        if name in _OF_THE_MACHINE:
            message = f"{name} has no effect: the endpoint's engine runs already"
            warnings.warn(message, stacklevel=3)
            continue
        if name == "seed":
            raise ValueError(f"seed: give each prompt SamplingParams(seed={value!r})")
        raise ValueError(
            f"{name}: the endpoint's engine runs already. Deploy it with {setting}={value}, "
            "as docs/deploy.md shows, and leave this out."
        )
