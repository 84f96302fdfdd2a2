"""Converts the arguments that a script passes to ``LLM``."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from worker.engine.seam.locations import import_from_vllm
from worker.job.sampling import Sampling, merge_params
from worker.limits.parameters import STRUCTURED_OUTPUTS, check_parameter_bounds
from worker.settings import Settings
from worker.settings.names import CANONICAL_NAMES, SPECULATIVE_KEYS, explain_removal
from worker.validation import SAMPLING_PARAMS, unknown_key_message

T = TypeVar("T")

# vLLM's SamplingParams, or a dict with the keys of a job's ``sampling_params``.
Params = Any


def check_argument_names(engine_args: Mapping[str, Any], options: Iterable[str]) -> None:
    """Check the names of arguments, and warn of those that vLLM has dropped.

    ``options`` are the names of the installed vLLM's options, in upper case.

    Raises:
        TypeError: If an argument is unknown.
    """
    names = (
        *options,
        *Settings.model_fields,
        *CANONICAL_NAMES,
        *CANONICAL_NAMES.values(),
        *SPECULATIVE_KEYS,
    )
    known = {name.lower() for name in names}
    for name in engine_args.keys() - known:
        if reason := explain_removal(name.upper()):
            warn_no_effect(name, reason)
        else:
            raise TypeError(f"LLM: {unknown_key_message(name, known)}")


@functools.cache
def warn_no_effect(name: str, reason: str) -> None:
    warnings.warn(f"{name} has no effect: {reason}", stacklevel=4)


def as_prompt_list(prompts: Any) -> list[Any]:
    """Return a list of prompts; a single prompt is a string, a dict, or a list of token ids."""
    items = [prompts] if isinstance(prompts, str | dict) else list(prompts)
    return [items] if items and isinstance(items[0], int) else items


def convert_distinct(values: list[Any], convert: Callable[[Any], T]) -> list[T]:
    """Convert all values; an object that occurs several times is converted once."""
    distinct = {id(value): value for value in values}
    converted = {key: convert(value) for key, value in distinct.items()}
    return [converted[id(value)] for value in values]


def to_sampling_params(params: Params, constraints: Any) -> Any:
    """Add the constraints; return a ``Sampling`` for a dict or None, else vLLM's object.

    Args:
        params: The sampling parameters, which are not changed. None for the defaults.
        constraints: Constraints on the output: a dict, an object with such attributes, or None.

    Raises:
        InvalidInput: If a parameter is invalid.
        TypeError: If ``params`` has another type.
    """
    constraint = (
        constraints if constraints is None or isinstance(constraints, dict) else vars(constraints)
    )
    if params is None or isinstance(params, dict):
        extra = {} if constraint is None else {"guided_options_request": constraint}
        sampling = Sampling.from_params(merge_params(params or {}, extra))
        # Even parameters of a trusted caller must not crash the engine.
        check_parameter_bounds(sampling.body_params, SAMPLING_PARAMS)
        return sampling
    if not isinstance(params, import_from_vllm("SamplingParams")):
        raise TypeError(f"sampling_params: a dict, or vLLM's SamplingParams, not {params!r}")
    if constraint is not None:
        constrained = to_sampling_params({}, constraint)
        if structured := constrained.vllm_params.get(STRUCTURED_OUTPUTS):
            # Imported here because it imports vLLM.
            from worker.engine.run.generation.sampling import build_structured_outputs  # noqa: PLC0415 - see above

            params = params.clone()
            params.structured_outputs = build_structured_outputs(structured)
    return params


def expand_per_prompt(value: Any, count: int, name: str) -> list[Any]:
    """Return a list with one value for each prompt, repeating a single value.

    Raises:
        ValueError: If a list has another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} of them for {count} prompts")
    return list(value)
