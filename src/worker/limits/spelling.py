"""Structured outputs: what an answer must match, in every spelling that vLLM has had for it."""

from collections.abc import Iterator, Mapping
from typing import Any

from worker.validation import invalid_param, without_nulls

# The kinds, of which a request has one: vLLM's names.
KINDS = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})
PREFIX = "guided_"
GUIDED = frozenset(PREFIX + name for name in (*KINDS, "whitespace_pattern"))
# Objects that hold such names, with or without the prefix: vLLM's today, its former, TACO-LLM's.
STRUCTURED = "structured_outputs"
GUIDED_OBJECTS = frozenset({STRUCTURED, "guided_decoding", "guided_options_request"})

# Parameters that vLLM has dropped, with what replaces them; with or without the prefix.
ONE_BACKEND = "vLLM has one backend for the whole endpoint: STRUCTURED_OUTPUTS_CONFIG sets it"
REPLACED = {
    "backend": ONE_BACKEND,
    "decoding_backend": ONE_BACKEND,
    "logits_processors": "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them",
    "truncate_prompt_tokens": "vLLM does not cut prompts while it samples: send a shorter one",
}

# A part of them: the caller's name for it, vLLM's, and the value.
Part = tuple[str, str, Any]


def normalized(params: Mapping[str, Any], holder: str) -> dict[str, Any]:
    """Return sampling parameters with their structured outputs in vLLM's own spelling.

    Args:
        params: without null values.
        holder: the object that holds them, as ``invalid_param`` takes it.

    Raises:
        InvalidInput: naming the parameter.
    """
    _refuse_replaced(params, holder)
    # A switch that is off constrains nothing.
    parts = [part for part in _parts(params, holder) if part[1:] != ("json_object", False)]
    _refuse_several(parts, holder)
    rest = {key: value for key, value in params.items() if key not in GUIDED | GUIDED_OBJECTS}
    structured = {kind: value for _, kind, value in parts}
    return {**rest, STRUCTURED: structured} if structured else rest


def _parts(params: Mapping[str, Any], holder: str) -> Iterator[Part]:
    for name in sorted(params.keys() & GUIDED):
        yield name, name.removeprefix(PREFIX), params[name]
    for name in sorted(params.keys() & GUIDED_OBJECTS):
        if not isinstance(params[name], dict):
            raise invalid_param(name, "an object", holder)
        nested = without_nulls(params[name])
        _refuse_replaced(nested, holder)
        for key, value in nested.items():
            yield f"{name}.{key}", key.removeprefix(PREFIX), value


def _refuse_replaced(params: Mapping[str, Any], holder: str) -> None:
    for name in params:
        if instead := REPLACED.get(name.removeprefix(PREFIX)):
            raise invalid_param(name, f"{name} is gone: {instead}", holder, prefixed=False)


def _refuse_several(parts: list[Part], holder: str) -> None:
    """Refuse several kinds, and several values of one parameter."""
    kinds = [name for name, kind, _ in parts if kind in KINDS]
    if len(kinds) > 1:
        message = f"an answer is held to one of {', '.join(kinds)}, not more"
        raise invalid_param(kinds[0], message, holder, prefixed=False)
    names: dict[str, str] = {}
    for name, kind, _ in parts:
        if (other := names.setdefault(kind, name)) != name:
            message = f"{other} and {name} are the same"
            raise invalid_param(name, message, holder, prefixed=False)
