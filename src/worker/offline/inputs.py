"""Converts what a script passes to ``LLM``."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from worker.engine.seam.locations import find
from worker.job.sampling import Sampling, gathered
from worker.limits.parameters import check_parameters
from worker.limits.spelling import STRUCTURED
from worker.settings import Settings
from worker.settings.names import SPECULATIVE, SPELLINGS, removed
from worker.validation import SAMPLING, unknown_key

T = TypeVar("T")

# vLLM's SamplingParams, or a dict as in a job's ``sampling_params``.
Params = Any


def check_known(engine_args: Mapping[str, Any], options: Iterable[str]) -> None:
    """Check the names of arguments; warn of those that vLLM has dropped.

    Args:
        engine_args: the script's.
        options: the installed vLLM's, in upper case.

    Raises:
        TypeError: an argument is unknown.
    """
    names = (*options, *Settings.model_fields, *SPELLINGS, *SPELLINGS.values(), *SPECULATIVE)
    known = {name.lower() for name in names}
    for name in engine_args.keys() - known:
        if reason := removed(name.upper()):
            warn_once(name, reason)
        else:
            raise TypeError(f"LLM: {unknown_key(name, known)}")


@functools.cache
def warn_once(name: str, reason: str) -> None:
    warnings.warn(f"{name} has no effect: {reason}", stacklevel=4)


def prompt_list(prompts: Any) -> list[Any]:
    """Return a list of prompts, also for a single one: a text, a dict, or a list of token ids."""
    several = [prompts] if isinstance(prompts, str | dict) else list(prompts)
    return [several] if several and isinstance(several[0], int) else several


def convert_distinct(values: list[Any], convert: Callable[[Any], T]) -> list[T]:
    """Convert each value, but an object that occurs several times only once."""
    distinct = {id(value): value for value in values}
    converted = {key: convert(value) for key, value in distinct.items()}
    return [converted[id(value)] for value in values]


def sampling_params_of(params: Params, guided: Any) -> Any:
    """Return a job's ``Sampling`` for a dict, and vLLM's own object as it is.

    Args:
        params: None for the defaults.
        guided: constrains the text: a dict, or an object with such attributes; None: it does not.

    Raises:
        InvalidInput: a parameter is refused.
        TypeError: it is something else.
    """
    constraint = guided if guided is None or isinstance(guided, dict) else vars(guided)
    if params is None or isinstance(params, dict):
        outside = {} if constraint is None else {"guided_options_request": constraint}
        sampling = Sampling.read(gathered(params or {}, outside))
        # Who trusts callers still keeps the engine alive.
        check_parameters(sampling.body, SAMPLING)
        return sampling
    if not isinstance(params, find("SamplingParams")):
        raise TypeError(f"sampling_params: a dict, or vLLM's SamplingParams, not {params!r}")
    if constraint is not None:
        constrained = sampling_params_of({}, constraint)
        if structured := constrained.vllm.get(STRUCTURED):
            # Imported here, because it imports vLLM.
            from worker.engine.run.generation.sampling import structured_outputs  # noqa: PLC0415 - see above

            params = params.clone()
            params.structured_outputs = structured_outputs(structured)
    return params


def one_per_prompt(value: Any, count: int, name: str) -> list[Any]:
    """Return a list with a value for each prompt: the list itself, or one value for all.

    Raises:
        ValueError: the list has another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} of them for {count} prompts")
    return list(value)
