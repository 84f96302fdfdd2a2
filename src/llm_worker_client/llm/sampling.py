"""Sampling parameters of scripts, as a job's: ours, dicts, or objects such as vLLM's."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

# What vLLM's class also has for its own inside; results are always whole.
INSIDE = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})
# Sent though it is vLLM's default: that of an endpoint may be another (DEFAULT_MAX_TOKENS).
_OF_THE_ENDPOINT = "max_tokens"
GUIDED = "guided_options_request"


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """How answers are sampled: the raw form's parameters, which the worker checks.

    What is None is the endpoint's default.
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


NAMES = frozenset(field.name for field in dataclasses.fields(SamplingParams))


def plain(params: Any, guided: Any = None) -> dict[str, Any]:
    """Return parameters as a job has them.

    Args:
        params: ``SamplingParams``, a dict, another object with such attributes, or None.
        guided: constraints of the text, a dict or an object; None: only those in params.

    Raises:
        TypeError: they are something else.
        ValueError: an object asks for what no job has.
    """
    found = _given(params)
    if guided is not None:
        if GUIDED in found:
            raise ValueError(f"{GUIDED} stands in sampling_params and beside them")
        found[GUIDED] = guided
    return {name: _object(value) for name, value in found.items()}


def _given(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return {name: value for name, value in params.items() if value is not None}
    values = dict(_attributes(params))
    if not values:
        raise TypeError(f"sampling_params: SamplingParams or a dict, not {params!r}")
    if isinstance(params, SamplingParams):
        return {name: value for name, value in values.items() if value is not None}
    defaults: dict[str, Any] = {}
    with suppress(TypeError, ValueError):
        defaults = dict(_attributes(type(params)()))
    asked = {
        name: value
        for name, value in values.items()
        if value not in (None, [])
        and (name == _OF_THE_ENDPOINT or name not in defaults or value != defaults[name])
    }
    if unknown := sorted(asked.keys() - NAMES - INSIDE):
        raise ValueError(f"sampling_params.{unknown[0]}: a job has no such parameter")
    return {name: value for name, value in asked.items() if name in NAMES}


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public fields of an object: of msgspec's structs, dataclasses, and all others."""
    names = getattr(holder, "__struct_fields__", getattr(holder, "__dict__", ()))
    for name in names:
        if not name.startswith("_"):
            yield name, getattr(holder, name)


def _object(value: Any) -> Any:
    """Return an object (constraints of a text, …) as a dict of what it asks for."""
    if value is None or isinstance(value, str | int | float | list | tuple | Mapping):
        return value
    asked = dict(_attributes(value))
    if not asked:
        raise TypeError(f"sampling_params: {value!r} can't be sent")
    return {name: part for name, part in asked.items() if part is not None and part is not False}
