"""Sampling parameters of a raw job: checked by vLLM's own classes, and planned."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import (
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from worker.engine.seam.protocols import EngineInput
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.job.sampling import BEAM_SEARCH_USES, ELSEWHERE, Sampling
from worker.limits.spelling import GUIDED, GUIDED_OBJECTS, KINDS, STRUCTURED
from worker.validation import MOST_MISTAKES, SAMPLING, invalid_param, unknown_key

# Fields that only the worker or the engine may set.
INTERNAL = frozenset(
    """
    output_kind output_text_buffer_length skip_clone extra_args
    prompt_logprob_start prompt_logprob_token_ids
    """.split()
)
VLLMS = (
    frozenset(name for name in SamplingParams.__struct_fields__ if not name.startswith("_"))
    - INTERNAL
)
KNOWN = VLLMS | Sampling.model_fields.keys() | GUIDED | GUIDED_OBJECTS
# Keys that callers write into sampling_params, with what to write instead.
MISPLACED = dict.fromkeys(RawJob.model_fields, f"it stands beside {SAMPLING}") | ELSEWHERE

# Parameters that are objects, and the keys of each.
NESTED = {
    name: frozenset(key.name for key in fields(class_) if not key.name.startswith("_"))
    for name, class_ in (
        (STRUCTURED, StructuredOutputsParams),
        ("repetition_detection", RepetitionDetectionParams),
    )
}

# The most tokens of one output whose text is split: the time grows with the square of it.
MOST_SPLIT = 256

_adapter = TypeAdapter(SamplingParams)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to generate: vLLM's ``SamplingParams``, and the job's that it does not have."""

    params: Any
    sampling: Sampling = field(default_factory=Sampling)


def plan(sampling: Sampling, defaults: Mapping[str, Any], *, streamed: bool, context: int) -> Plan:
    """Plan an answer for a raw job's sampling parameters.

    They may be any of the installed vLLM's. There are defaults for those that the job leaves out,
    and ``max_tokens`` above the model's context are cut.

    Raises:
        InvalidInput: naming the parameter that is unknown or has a wrong type.
        Exception: vLLM's own, for a value out of range.
    """
    values = sampling.vllm
    _check_keys(SAMPLING, values, VLLMS)
    for name, known in NESTED.items():
        if isinstance(values.get(name), dict):
            _check_keys(f"{SAMPLING}.{name}", values[name], known)
    if (interval := values.get("stream_interval")) and streamed and interval > MOST_SPLIT:
        raise invalid_param("stream_interval", f"at most {MOST_SPLIT} in a stream", SAMPLING)
    beam = sampling.use_beam_search
    sampling.refuse_greedy(values.get("temperature", defaults.get("temperature")))
    params = _params({**defaults, **values, "n": 1 if beam else sampling.width})
    params.output_kind = RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY
    params.max_tokens = min(params.max_tokens or context, context)
    if params.min_tokens > params.max_tokens:
        message = f"more than the {context:,} tokens of the context"
        raise invalid_param("min_tokens", message, SAMPLING)
    if beam:
        _refuse_for_beams(sampling, params)
    elif sampling.ranked and params.num_logprobs is None:
        # Choices are ranked by the log probabilities of their own tokens.
        params.logprobs = 0
    return Plan(params, sampling)


def plan_vllm_params(params: Any) -> Plan:
    """Plan one answer, not streamed, for vLLM's own ``SamplingParams``."""
    whole = params.clone()
    whole.output_kind = RequestOutputKind.FINAL_ONLY
    return Plan(whole)


def structured_outputs(values: Mapping[str, Any]) -> Any:
    """Build vLLM's ``StructuredOutputsParams``.

    Raises:
        InvalidInput: there is an unknown key, or none of the kinds.
    """
    _check_keys(STRUCTURED, values, NESTED[STRUCTURED])
    return StructuredOutputsParams(**values)


def beam_search_params(planned: Plan, prompt: EngineInput, model_config: Any) -> Any:
    """Build vLLM's ``BeamSearchParams``; as with sampling, the context limits the length.

    Raises:
        InvalidInput: the search needs more log probabilities than the engine may return.
    """
    # In each step vLLM compares twice as many candidates as it keeps beams.
    most, width = model_config.max_logprobs, planned.sampling.width
    if 0 <= most < 2 * width:
        message = f"a beam of {width} needs MAX_LOGPROBS={2 * width}"
        raise invalid_param("best_of", f"{message}; it is {most}", SAMPLING)
    params = planned.params
    room = model_config.max_model_len - len(prompt.get("prompt_token_ids", ()))
    # vLLM 0.29 skips them always.
    skipped = ["skip_special_tokens"] if hasattr(BeamSearchParams, "skip_special_tokens") else []
    return BeamSearchParams(
        beam_width=width,
        max_tokens=max(1, min(params.max_tokens or room, room)),
        ignore_eos=params.ignore_eos,
        length_penalty=planned.sampling.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        **{name: getattr(params, name) for name in skipped},
    )


def within(context: int, params: Any, prompt: EngineInput) -> Any:
    """Return parameters that ask for no more tokens than there is room for after a prompt.

    vLLM's server cuts them likewise; its engine takes numbers that a GPU's kernels don't. A prompt
    without tokens of its own is left to the engine.
    """
    room = max(1, context - len(prompt.get("prompt_token_ids") or ()))
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    cut = params.clone()
    cut.max_tokens, cut.min_tokens = room, min(params.min_tokens, room)
    return cut


def _params(values: dict[str, Any]) -> Any:
    if values.get("stop_token_ids") and not values.get("stop"):
        # A stop token's text belongs to the answer, a stop string's does not. vLLM has one switch
        # for both, so with stop strings the text ends before the token, too.
        values.setdefault("include_stop_str_in_output", True)
    try:
        # vLLM would notice too late that its core can't be sent a value.
        msgspec.msgpack.encode(values)
        # As JSON: there the strict mode accepts numbers as dict keys, but not "3" for 3.
        return _adapter.validate_json(json.dumps(values), strict=True)
    except OverflowError:
        raise InvalidInput(f"{SAMPLING}: an integer has more than 64 bits") from None
    except RecursionError:
        raise InvalidInput(f"{SAMPLING}: a value is nested too deeply") from None
    except ValidationError as invalid:
        raise _refusal(invalid) from None
    except VLLMClientError as refused:
        # The message begins with the parameter; only some of vLLM's checks also name it apart.
        message = str(refused.args[0])
        word = message.split(" ", 1)[0].strip("`,")
        param = word if word in KNOWN else None
        raise InvalidInput(f"{SAMPLING}: {message}", param=param) from None


def _refuse_for_beams(sampling: Sampling, params: Any) -> None:
    """Refuse parameters that vLLM's beam search would ignore."""
    default, values = SamplingParams(), sampling.vllm
    changed = [name for name in values if getattr(params, name) != getattr(default, name)]
    sampling.refuse_ignored([name for name in changed if name not in BEAM_SEARCH_USES])
    # Though it does not sample, it accepts the default and what is greedy.
    if values.get("temperature", 0) not in (0, default.temperature):
        message = "there is no chance in beam search: leave it out, or 0"
        raise invalid_param("temperature", message, SAMPLING)


def _check_keys(holder: str, values: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse unknown keys, and structured outputs of none of the kinds."""
    if unknown := sorted(values.keys() - known)[:MOST_MISTAKES]:
        names, misplaced = (KNOWN, MISPLACED) if known is VLLMS else (known, {})
        message = "; ".join(unknown_key(name, names, misplaced) for name in unknown)
        raise InvalidInput(f"{holder}: {message}", param=unknown[0])
    if known is NESTED[STRUCTURED] and not values.keys() & KINDS:
        raise invalid_param(STRUCTURED, f"one of {', '.join(sorted(KINDS))}", SAMPLING)


def _refusal(invalid: ValidationError) -> InvalidInput:
    errors = invalid.errors(include_input=False, include_url=False)
    # A location begins with pydantic's label for the class.
    reasons = {str(error["loc"][1]): error["msg"] for error in errors if len(error["loc"]) > 1}
    if not reasons:
        return InvalidInput(f"{SAMPLING}: {errors[0]['msg']}")
    message = "; ".join(f"{SAMPLING}.{name}: {reason}" for name, reason in reasons.items())
    return InvalidInput(message, param=next(iter(reasons)))
