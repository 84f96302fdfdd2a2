"""Sampling parameters of a raw job, checked and typed by vLLM's own classes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from worker.engine.locations import find
from worker.errors import InvalidInput
from worker.job.base import MOST_MISTAKES, SAMPLING, unknown_key
from worker.job.sampling import BEAM_SEARCH_USES, Sampling
from worker.job.structured import GUIDED, GUIDED_OBJECTS, KINDS, STRUCTURED

SamplingParams = find("SamplingParams")
OutputKind = find("RequestOutputKind")

# Fields that are the worker's or the engine's to set, not a caller's.
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

# Objects among them, and what may stand in those.
NESTED = {
    name: frozenset(field.name for field in fields(find(class_)) if not field.name.startswith("_"))
    for name, class_ in (
        (STRUCTURED, "StructuredOutputsParams"),
        ("repetition_detection", "RepetitionDetectionParams"),
    )
}

# Tokens that may come at once in a stream: splitting their text takes time with their square.
MOST_SPLIT = 256

# Temperatures that a beam search takes, though it has none: greedy sampling's and the default.
BEAM_TEMPERATURES = (0, SamplingParams().temperature)

_adapter = TypeAdapter(SamplingParams)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to generate: by sampling, or by beam search if ``beam_width`` is not 0."""

    params: Any  # vLLM's SamplingParams
    n: int = 1
    beam_width: int = 0
    length_penalty: float = 1.0
    # Ranking needs log probabilities, too, which are not for the caller.
    tells_logprobs: bool = False

    @property
    def ranked(self) -> bool:
        return bool(self.beam_width) or self.params.n > self.n


def plan(asked: Sampling, defaults: Mapping[str, Any], *, streamed: bool) -> Plan:
    """Turn a raw job's sampling parameters into vLLM's.

    Args:
        asked: it may hold any of the installed vLLM's.
        defaults: what holds for parameters that the job does not name.
        streamed: whether the answer is to come bit by bit.

    Raises:
        InvalidInput: naming the parameter that is unknown or has a wrong type.
        Exception: vLLM's own, for a value out of range.
    """
    given = asked.vllm
    _refuse_unknown(SAMPLING, given, VLLMS)
    for name, known in NESTED.items():
        if isinstance(given.get(name), dict):
            _refuse_unknown(f"{SAMPLING}.{name}", given[name], known)
    if isinstance(given.get(STRUCTURED), dict):
        _refuse_no_kind(given[STRUCTURED])
    if (interval := given.get("stream_interval")) and streamed and interval > MOST_SPLIT:
        message = f"at most {MOST_SPLIT} in a stream"
        raise InvalidInput(f"{SAMPLING}.stream_interval: {message}", param="stream_interval")
    beam = asked.use_beam_search
    asked.refuse_greedy(given.get("temperature", defaults.get("temperature")))
    params = _params({**defaults, **given, "n": 1 if beam else asked.width})
    params.output_kind = OutputKind.DELTA if streamed else OutputKind.FINAL_ONLY
    if beam:
        _refuse_for_beams(asked, params)
    elif asked.ranked and params.num_logprobs is None:
        # Choices are ranked by the log probabilities of their own tokens.
        params.logprobs = 0
    return Plan(
        params,
        n=asked.n,
        beam_width=asked.width if beam else 0,
        length_penalty=asked.length_penalty,
        tells_logprobs="logprobs" in given or "logprob_token_ids" in given,
    )


def as_given(params: Any) -> Plan:
    """Plan one whole answer by vLLM's own ``SamplingParams``."""
    whole = params.clone()
    whole.output_kind = OutputKind.FINAL_ONLY
    return Plan(whole, n=params.n)


def structured_outputs(given: Mapping[str, Any]) -> Any:
    """Make vLLM's ``StructuredOutputsParams``.

    Raises:
        InvalidInput: an unknown key, or nothing to hold an answer to.
    """
    _refuse_unknown(STRUCTURED, given, NESTED[STRUCTURED])
    _refuse_no_kind(given)
    return find("StructuredOutputsParams")(**given)


def beam_search_params(planned: Plan, prompt: Any, model_config: Any) -> Any:
    """Make vLLM's ``BeamSearchParams``; a search ends with the context, as sampling does.

    Raises:
        InvalidInput: the search is too wide for the log probabilities that the engine gives.
    """
    # vLLM looks at twice as many candidates a step as it keeps beams.
    most = model_config.max_logprobs
    if 0 <= most < 2 * planned.beam_width:
        message = f"a beam of {planned.beam_width} needs MAX_LOGPROBS={2 * planned.beam_width}"
        raise InvalidInput(f"{SAMPLING}.best_of: {message}; it is {most}", param="best_of")
    params = planned.params
    room = model_config.max_model_len - len(prompt.get("prompt_token_ids", ()))
    return find("BeamSearchParams")(
        beam_width=planned.beam_width,
        max_tokens=max(1, min(params.max_tokens or room, room)),
        ignore_eos=params.ignore_eos,
        length_penalty=planned.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
    )


def _params(given: dict[str, Any]) -> Any:
    if given.get("stop_token_ids") and not given.get("stop"):
        # The text of a stop token belongs to the answer, that of a stop string does not. vLLM has
        # one switch for both, so with stop strings the text ends before the token, too.
        given.setdefault("include_stop_str_in_output", True)
    try:
        # What the engine's core could not be sent, vLLM notices too late to refuse it.
        msgspec.msgpack.encode(given)
        # As JSON: there the strict mode takes dict keys that are numbers, but no "3" for 3.
        return _adapter.validate_json(json.dumps(given), strict=True)
    except OverflowError:
        raise InvalidInput(f"{SAMPLING}: an integer has more than 64 bits") from None
    except RecursionError:
        raise InvalidInput(f"{SAMPLING}: a value is nested too deeply") from None
    except ValidationError as invalid:
        raise _refusal(invalid) from None
    except find("VLLMClientError") as refused:
        # Its message names the parameter first, but only some of vLLM's checks say so themselves.
        message = str(refused.args[0])
        raise InvalidInput(f"{SAMPLING}: {message}", param=_first_word(message)) from None


def _first_word(message: str) -> str | None:
    word = message.split(" ", 1)[0].strip("`,")
    return word if word in KNOWN else None


def _refuse_for_beams(asked: Sampling, params: Any) -> None:
    """Refuse what vLLM's beam search would ignore."""
    default, given = SamplingParams(), asked.vllm
    ignored = [name for name in given if getattr(params, name) != getattr(default, name)]
    asked.refuse_ignored([name for name in ignored if name not in BEAM_SEARCH_USES])
    if given.get("temperature", 0) not in BEAM_TEMPERATURES:
        message = "there is no chance in beam search: leave it out, or 0"
        raise InvalidInput(f"{SAMPLING}.temperature: {message}", param="temperature")


def _refuse_unknown(where: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(given.keys() - known)[:MOST_MISTAKES]:
        names = KNOWN if known is VLLMS else known
        told = "; ".join(unknown_key(name, names) for name in unknown)
        raise InvalidInput(f"{where}: {told}", param=unknown[0])


def _refuse_no_kind(structured: Mapping[str, Any]) -> None:
    if not structured.keys() & KINDS:
        message = f"{SAMPLING}.{STRUCTURED}: one of {', '.join(sorted(KINDS))}"
        raise InvalidInput(message, param=STRUCTURED)


def _refusal(invalid: ValidationError) -> InvalidInput:
    errors = invalid.errors(include_input=False, include_url=False)
    # The first part of a location is pydantic's name for the alternative that it tried.
    told = {str(error["loc"][1]): error["msg"] for error in errors if len(error["loc"]) > 1}
    if not told:
        return InvalidInput(f"{SAMPLING}: {errors[0]['msg']}")
    message = "; ".join(f"{SAMPLING}.{name}: {why}" for name, why in told.items())
    return InvalidInput(message, param=next(iter(told)))
