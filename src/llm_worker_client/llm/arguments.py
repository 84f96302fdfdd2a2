"""Checks the engine arguments of ``LLM``, which can't change the engine of a running endpoint."""

import warnings
from collections.abc import Mapping
from typing import Any

from llm_worker_client.deploy.settings import LISTING

# Defaults of engine arguments of TACO-LLM and vLLM; an argument with its default is ignored.
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
# Engine arguments that affect only the use of the machine, not the output.
_MACHINE_ARGUMENTS = frozenset(
    """
    cpu_offload_gb disable_async_output_proc disable_custom_all_reduce disable_log_stats
    enable_prefix_caching enforce_eager gpu_memory_utilization max_context_len_to_capture
    max_num_batched_tokens max_num_seqs max_seq_len_to_capture pipeline_parallel_size swap_space
    tensor_parallel_size
    """.split()
)
_SETTING_NAMES = {"tokenizer": "TOKENIZER_NAME"}


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the engine arguments of a script; warn about those that have no effect on an endpoint.

    Raises:
        ValueError: If an argument would change the configuration of the endpoint's engine.
        TypeError: If neither an engine nor ``LLM`` has an argument of this name.
    """
    for name, value in arguments.items():
        setting = _SETTING_NAMES.get(name, name.upper())
        is_known = name in DEFAULTS or name in _MACHINE_ARGUMENTS
        if not is_known and setting not in LISTING.known_variables:
            name_error = LISTING.name_error(setting)
            raise TypeError(f"LLM: {name_error or f'there is no argument {name!r}'}")
        if name in DEFAULTS and value in (DEFAULTS[name], None):
            continue
        if name in _MACHINE_ARGUMENTS:
            message = f"{name} has no effect: the endpoint's engine is already running"
            warnings.warn(message, stacklevel=3)
            continue
        if name == "seed":
            raise ValueError(f"seed: give each prompt SamplingParams(seed={value!r})")
        raise ValueError(
            f"{name}: the endpoint's engine is already running. Deploy it with {setting}={value}, "
            "as docs/deploy.md shows, and leave this out."
        )
