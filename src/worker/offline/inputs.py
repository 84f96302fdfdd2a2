"""What a script passes to ``LLM``, brought into the worker's own forms."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from worker.engine.locations import find
from worker.job.base import unknown_key
from worker.job.sampling import Sampling, gathered
from worker.job.structured import STRUCTURED
from worker.settings import Settings
from worker.settings.names import SPECULATIVE, SPELLINGS, removed

T = TypeVar("T")

# vLLM's SamplingParams, or what a job's ``sampling_params`` may hold.
Params = Any


def refuse_unknown(engine_args: Mapping[str, Any], options: Iterable[str]) -> None:
    names = (*options, *Settings.model_fields, *SPELLINGS, *SPELLINGS.values(), *SPECULATIVE)
    known = {name.lower() for name in names}
    for name in engine_args.keys() - known:
        if why := removed(name.upper()):
            warn_once(name, why)
        else:
            raise TypeError(f"LLM: {unknown_key(name, known)}")


@functools.cache
def warn_once(name: str, why: str) -> None:
    warnings.warn(f"{name} has no effect: {why}", stacklevel=4)


def listed(prompts: Any) -> list[Any]:
    """Make a list of prompts of one: a text, a dict, or a list of ids."""
    several = [prompts] if isinstance(prompts, str | dict) else list(prompts)
    return [several] if several and isinstance(several[0], int) else several


def once(values: list[Any], make: Callable[[Any], T]) -> list[T]:
    """Make something of each value; values that are the same object share it."""
    distinct = {id(value): value for value in values}
    made = {key: make(value) for key, value in distinct.items()}
    return [made[id(value)] for value in values]


def sampling(params: Params, guided: Any) -> Any:
    """Read parameters as a job's would be; vLLM's own object is taken as it is."""
    held = guided if guided is None or isinstance(guided, dict) else vars(guided)
    if params is None or isinstance(params, dict):
        outside = {} if held is None else {"guided_options_request": held}
        return Sampling.read(gathered(params or {}, outside))
    if not isinstance(params, find("SamplingParams")):
        raise TypeError(f"sampling_params: a dict, or vLLM's SamplingParams, not {params!r}")
    if held is not None:
        asked = sampling({}, held)
        if structured := asked.vllm.get(STRUCTURED):
            # Here, because it imports vLLM.
            from worker.engine.generation.sampling import structured_outputs  # noqa: PLC0415 - see above

            params = params.clone()
            params.structured_outputs = structured_outputs(structured)
    return params


def each(given: Any, count: int, name: str) -> list[Any]:
    """Give every prompt its own of a list; what is no list, all prompts share."""
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name}: {len(given)} of them for {count} prompts")
    return list(given)
