"""Sampling parameters of scripts: this package's class, dicts, or objects such as vLLM's."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

# Internal fields of vLLM's class, which have no effect because outputs are always complete.
INTERNAL_FIELDS = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})
# Parameter that is sent even with vLLM's default; the endpoint's (DEFAULT_MAX_TOKENS) may differ.
_ALWAYS_SENT = "max_tokens"
GUIDED_OPTIONS = "guided_options_request"


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """Sampling parameters in the worker's own format; the worker validates them.

    For a parameter that is None, the endpoint's default applies.
    """

    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    logprobs: int | None = None
    return_token_log_probs: bool | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    structured_outputs: Any = None
    guided_decoding: Any = None
    guided_options_request: Any = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_structural_tag: Any = None
    guided_whitespace_pattern: str | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    detokenize: bool | None = None
    repetition_detection: Any = None
    stream_interval: int | None = None
    thinking_token_budget: int | None = None
    trace_decode_token_ids: list[int] | None = None
    routed_experts_prompt_start: int | None = None
    skip_reading_prefix_cache: bool | None = None
    watermarking: bool | None = None


PARAMETER_NAMES = frozenset(field.name for field in dataclasses.fields(SamplingParams))


def to_job_params(params: Any, guided: Any = None) -> dict[str, Any]:
    """Return sampling parameters in the format of raw jobs.

    Args:
        params: ``SamplingParams``, a dict, another object with these attributes, or None.
        guided: Constraints for the output as a dict or an object, in addition to ``params``.

    Raises:
        TypeError: If ``params`` or one of its values has an unsupported type.
        ValueError: If jobs don't support a parameter, or ``params`` and ``guided`` both contain
            ``guided_options_request``.
    """
    job_params = _read_params(params)
    if guided is not None:
        if GUIDED_OPTIONS in job_params:
            raise ValueError(f"{GUIDED_OPTIONS} is in sampling_params and an argument as well")
        job_params[GUIDED_OPTIONS] = guided
    return {name: _to_json_value(value) for name, value in job_params.items()}


def _read_params(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return {name: value for name, value in params.items() if value is not None}
    values = dict(_public_fields(params))
    if not values:
        raise TypeError(f"sampling_params: SamplingParams or a dict, not {params!r}")
    if isinstance(params, SamplingParams):
        return {name: value for name, value in values.items() if value is not None}
    defaults: dict[str, Any] = {}
    with suppress(TypeError, ValueError):
        defaults = dict(_public_fields(type(params)()))
    changed = {
        name: value
        for name, value in values.items()
        if value not in (None, [])
        and (name == _ALWAYS_SENT or name not in defaults or value != defaults[name])
    }
    if unknown := sorted(changed.keys() - PARAMETER_NAMES - INTERNAL_FIELDS):
        raise ValueError(f"sampling_params.{unknown[0]}: a job has no such parameter")
    return {name: value for name, value in changed.items() if name in PARAMETER_NAMES}


def _public_fields(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of public fields of a msgspec struct, a dataclass or any object."""
    names = getattr(owner, "__struct_fields__", getattr(owner, "__dict__", ()))
    for name in names:
        if not name.startswith("_"):
            yield name, getattr(owner, name)


def _to_json_value(value: Any) -> Any:
    """Return a JSON value unchanged, or an object's fields as a dict without None and False."""
    if value is None or isinstance(value, str | int | float | list | tuple | Mapping):
        return value
    fields = dict(_public_fields(value))
    if not fields:
        raise TypeError(f"sampling_params: {value!r} can't be sent")
    return {name: each for name, each in fields.items() if each is not None and each is not False}
