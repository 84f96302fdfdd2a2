"""Sampling parameters of a raw job, validated with vLLM's own classes.

A raw job's parameters can be refused in this order: by ``worker.job.sampling_params``, which checks
those that vLLM lacks; by ``worker.limits.parameters``, if a value would cost too much or kill the
engine; here, by the fields and the checks of the installed vLLM; by ``requests.limits``, which
counts the tokens of bad words; and by ``grammar.gate``, which tries structured outputs before the
core gets them. For a request to vLLM's server, the server's own models take the place of the third,
and ``dialects.openai.forward`` calls the first for the parameters that both have.
"""

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
from worker.errors import InvalidInput, field_error
from worker.job import RawJob
from worker.job.sampling_params import BEAM_SEARCH_USES, OTHER_API_KEYS, Sampling
from worker.limits.parameters import (
    CONSTRAINT_KINDS,
    GUIDED_KEYS,
    GUIDED_OBJECTS,
    STRUCTURED_OUTPUTS,
)
from worker.validation import MAX_MISTAKES, SAMPLING_PARAMS, unknown_key_message

# Fields of ``SamplingParams`` that only the worker or the engine may set.
INTERNAL_FIELDS = frozenset(
    """
    output_kind output_text_buffer_length skip_clone extra_args
    prompt_logprob_start prompt_logprob_token_ids
    """.split()
)
VLLM_FIELDS = (
    frozenset(name for name in SamplingParams.__struct_fields__ if not name.startswith("_"))
    - INTERNAL_FIELDS
)
KNOWN_KEYS = VLLM_FIELDS | Sampling.model_fields.keys() | GUIDED_KEYS | GUIDED_OBJECTS
# Keys that callers put into ``sampling_params`` by mistake, with the correct place or alternative.
MISPLACED_KEYS = (
    dict.fromkeys(RawJob.model_fields, f"it belongs next to {SAMPLING_PARAMS}, not in it")
    | OTHER_API_KEYS
)

# The valid keys of each parameter that is an object.
NESTED_KEYS = {
    name: frozenset(key.name for key in fields(class_) if not key.name.startswith("_"))
    for name, class_ in (
        (STRUCTURED_OUTPUTS, StructuredOutputsParams),
        ("repetition_detection", RepetitionDetectionParams),
    )
}

# Maximum number of tokens in an output whose text is split into one delta per token. The time to
# split it grows with the square of the number.
MAX_SPLIT_TOKENS = 256

_validator = TypeAdapter(SamplingParams)


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """vLLM's ``SamplingParams`` for an answer, and all of the job's, also those not of vLLM."""

    params: Any
    sampling: Sampling = field(default_factory=Sampling)


def plan_job_sampling(
    sampling: Sampling, defaults: Mapping[str, Any], *, is_streamed: bool, limit: int
) -> SamplingPlan:
    """Return the plan for an answer to a raw job.

    A job can set all parameters of the installed vLLM except ``INTERNAL_FIELDS``; ``defaults``
    apply to parameters that it omits. ``max_tokens`` is at most ``limit``. A value out of range is
    refused by vLLM's own exception.
    """
    values = sampling.vllm_params
    _refuse_unknown_keys(SAMPLING_PARAMS, values, VLLM_FIELDS)
    for name, known in NESTED_KEYS.items():
        if isinstance(values.get(name), dict):
            _refuse_unknown_keys(f"{SAMPLING_PARAMS}.{name}", values[name], known)
    if (interval := values.get("stream_interval")) and is_streamed and interval > MAX_SPLIT_TOKENS:
        message = f"at most {MAX_SPLIT_TOKENS} in a stream"
        raise field_error("stream_interval", message, SAMPLING_PARAMS)

    is_beam_search = sampling.use_beam_search
    sampling.refuse_equal_choices(values.get("temperature", defaults.get("temperature")))
    count = 1 if is_beam_search else sampling.num_candidates
    params = _build_sampling_params({**defaults, **values, "n": count})
    params.output_kind = RequestOutputKind.DELTA if is_streamed else RequestOutputKind.FINAL_ONLY
    params.max_tokens = min(params.max_tokens or limit, limit)
    if params.min_tokens > params.max_tokens:
        message = f"more than the {limit:,} tokens that an answer may have"
        raise field_error("min_tokens", message, SAMPLING_PARAMS)

    if is_beam_search:
        default = SamplingParams()
        changed = [name for name in values if getattr(params, name) != getattr(default, name)]
        ignored = [name for name in changed if name not in BEAM_SEARCH_USES]
        sampling.refuse_ignored_in_beam_search(ignored)
        # Beam search does not sample, but the default temperature and 0, which is greedy, are
        # accepted.
        if values.get("temperature", 0) not in (0, default.temperature):
            message = "beam search is deterministic: leave it out, or set 0"
            raise field_error("temperature", message, SAMPLING_PARAMS)
    elif sampling.is_ranked and params.num_logprobs is None:
        # Ranking needs only the log probabilities of the chosen tokens, without alternatives.
        params.logprobs = 0
    return SamplingPlan(params, sampling)


def plan_from_vllm_params(params: Any, limit: int) -> SamplingPlan:
    """Return the plan of a whole answer; ``max_tokens`` and ``min_tokens`` are up to ``limit``."""
    copy = params.clone()
    copy.output_kind = RequestOutputKind.FINAL_ONLY
    copy.max_tokens = min(copy.max_tokens or limit, limit)
    copy.min_tokens = min(copy.min_tokens, limit)
    return SamplingPlan(copy)


def build_structured_outputs(values: Mapping[str, Any]) -> Any:
    _refuse_unknown_keys(STRUCTURED_OUTPUTS, values, NESTED_KEYS[STRUCTURED_OUTPUTS])
    return StructuredOutputsParams(**values)


def build_beam_search_params(plan: SamplingPlan, prompt: EngineInput, model_config: Any) -> Any:
    """Build vLLM's ``BeamSearchParams``; as with sampling, the context limits the length."""
    # In each step vLLM compares twice as many candidates as it keeps beams.
    max_logprobs, width = model_config.max_logprobs, plan.sampling.num_candidates
    if 0 <= max_logprobs < 2 * width:
        message = f"a beam of {width} needs MAX_LOGPROBS={2 * width}"
        raise field_error("best_of", f"{message}; it is {max_logprobs}", SAMPLING_PARAMS)
    params = plan.params
    max_tokens = model_config.max_model_len - len(prompt.get("prompt_token_ids", ()))
    # vLLM 0.29 doesn't have this field, and always skips special tokens.
    optional = ["skip_special_tokens"] if hasattr(BeamSearchParams, "skip_special_tokens") else []
    return BeamSearchParams(
        beam_width=width,
        max_tokens=max(1, min(params.max_tokens or max_tokens, max_tokens)),
        ignore_eos=params.ignore_eos,
        length_penalty=plan.sampling.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        **{name: getattr(params, name) for name in optional},
    )


def limit_tokens_to_context(context: int, params: Any, prompt: EngineInput) -> Any:
    """Return parameters whose ``max_tokens`` and ``min_tokens`` fit the context after a prompt.

    vLLM's server applies this limit. vLLM's engine doesn't: it accepts numbers that the kernels of
    a GPU can't handle. The engine checks the length of a prompt without token ids.
    """
    max_tokens = max(1, context - len(prompt.get("prompt_token_ids") or ()))
    if params.max_tokens is None or params.max_tokens <= max_tokens:
        return params
    limited = params.clone()
    limited.max_tokens, limited.min_tokens = max_tokens, min(params.min_tokens, max_tokens)
    return limited


def _build_sampling_params(values: dict[str, Any]) -> Any:
    if values.get("stop_token_ids") and not values.get("stop"):
        # The text of a stop token belongs to the answer, the text of a stop string does not. vLLM
        # has one option for both, so with stop strings the text also ends before a stop token.
        values.setdefault("include_stop_str_in_output", True)
    try:
        # Try to encode: vLLM would notice too late that a value can't be sent to its core.
        msgspec.msgpack.encode(values)
        # Strict validation of JSON accepts "3" as an integer key of an object, but not as a value.
        return _validator.validate_json(json.dumps(values), strict=True)
    except OverflowError:
        raise InvalidInput(f"{SAMPLING_PARAMS}: an integer has more than 64 bits") from None
    except RecursionError:
        raise InvalidInput(f"{SAMPLING_PARAMS}: a value is nested too deeply") from None
    except ValidationError as invalid:
        errors = invalid.errors(include_input=False, include_url=False)
        # An error's location is pydantic's label for the class, then the parameter.
        reasons = {str(error["loc"][1]): error["msg"] for error in errors if len(error["loc"]) > 1}
        if not reasons:
            raise InvalidInput(f"{SAMPLING_PARAMS}: {errors[0]['msg']}") from None
        message = "; ".join(f"{SAMPLING_PARAMS}.{name}: {why}" for name, why in reasons.items())
        raise InvalidInput(message, param=next(iter(reasons))) from None
    except VLLMClientError as refused:
        # The message begins with the parameter; only some of vLLM's checks also set it separately.
        message = str(refused.args[0])
        word = message.split(" ", 1)[0].strip("`,")
        param = word if word in KNOWN_KEYS else None
        raise InvalidInput(f"{SAMPLING_PARAMS}: {message}", param=param) from None


def _refuse_unknown_keys(holder: str, values: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse unknown keys, and structured outputs without a kind of constraint."""
    if unknown := sorted(values.keys() - known)[:MAX_MISTAKES]:
        names, misplaced = (KNOWN_KEYS, MISPLACED_KEYS) if known is VLLM_FIELDS else (known, {})
        message = "; ".join(unknown_key_message(name, names, misplaced) for name in unknown)
        raise InvalidInput(f"{holder}: {message}", param=unknown[0])
    if known is NESTED_KEYS[STRUCTURED_OUTPUTS] and not values.keys() & CONSTRAINT_KINDS:
        message = f"one of {', '.join(sorted(CONSTRAINT_KINDS))}"
        raise field_error(STRUCTURED_OUTPUTS, message, SAMPLING_PARAMS)
