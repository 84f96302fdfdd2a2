"""Sampling parameters of a raw job, checked and typed by vLLM's own class."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from worker.engine.locations import find
from worker.errors import InvalidInput
from worker.job import MOST_TOLD, RawJob, unknown_key

SamplingParams = find("SamplingParams")
OutputKind = find("RequestOutputKind")

# Fields that are the worker's or the engine's to set, not a caller's, and those whose results
# the raw output has no place for.
INTERNAL = frozenset(
    """
    output_kind output_text_buffer_length skip_clone extra_args prompt_logprobs
    prompt_logprob_start prompt_logprob_token_ids
    """.split()
)
KNOWN = (
    frozenset(name for name in SamplingParams.__struct_fields__ if not name.startswith("_"))
    - INTERNAL
)

# Objects among them, and what may stand in those.
NESTED = {
    name: frozenset(field.name for field in fields(find(class_)) if not field.name.startswith("_"))
    for name, class_ in (
        ("structured_outputs", "StructuredOutputsParams"),
        ("repetition_detection", "RepetitionDetectionParams"),
    )
}
KINDS = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})

_adapter = TypeAdapter(SamplingParams)


def sampling_params(job: RawJob, defaults: Mapping[str, Any]) -> Any:
    """Make vLLM's ``SamplingParams`` for a raw job.

    Args:
        job: its ``sampling_params`` may hold any of the installed vLLM's; null counts as absent.
        defaults: what holds for parameters that the job does not name.

    Raises:
        InvalidInput: naming the parameter that is unknown or has a wrong type.
        Exception: vLLM's own, for a value out of range.
    """
    given = {name: value for name, value in job.sampling_params.items() if value is not None}
    _refuse_unknown("sampling_params", given, KNOWN)
    for name, known in NESTED.items():
        if isinstance(given.get(name), dict):
            _refuse_unknown(f"sampling_params.{name}", given[name], known)
    _refuse_several_kinds(given.get("structured_outputs"))
    try:
        # What the engine's core could not be sent, vLLM notices too late to refuse it.
        msgspec.msgpack.encode(given)
        # As JSON: there the strict mode takes dict keys that are numbers, but no "3" for 3.
        params = _adapter.validate_json(json.dumps({**defaults, **given}), strict=True)
    except OverflowError:
        raise InvalidInput("sampling_params: an integer has more than 64 bits") from None
    except RecursionError:
        raise InvalidInput("sampling_params: a value is nested too deeply") from None
    except ValidationError as invalid:
        raise _refusal(invalid) from None
    params.output_kind = OutputKind.DELTA if job.stream else OutputKind.FINAL_ONLY
    return params


def _refuse_unknown(where: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(given.keys() - known)[:MOST_TOLD]:
        told = "; ".join(unknown_key(name, known) for name in unknown)
        raise InvalidInput(f"{where}: {told}", param=unknown[0])


def _refuse_several_kinds(structured: Any) -> None:
    """Refuse what vLLM would refuse, too, but with the values in its message."""
    given = structured.keys() & KINDS if isinstance(structured, dict) else set()
    if len([kind for kind in given if structured[kind] is not None]) > 1:
        message = f"sampling_params.structured_outputs: one of {', '.join(sorted(KINDS))}, not more"
        raise InvalidInput(message, param="structured_outputs")


def _refusal(invalid: ValidationError) -> InvalidInput:
    errors = invalid.errors(include_input=False, include_url=False)
    # The first part of a location is pydantic's name for the alternative that it tried.
    told = {str(error["loc"][1]): error["msg"] for error in errors if len(error["loc"]) > 1}
    if not told:
        return InvalidInput(f"sampling_params: {errors[0]['msg']}")
    message = "; ".join(f"sampling_params.{name}: {why}" for name, why in told.items())
    return InvalidInput(message, param=next(iter(told)))
