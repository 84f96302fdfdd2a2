"""Structured outputs in all their spellings: vLLM's current and former names, and TACO-LLM's."""

from collections.abc import Iterator, Mapping
from typing import Any

from worker.validation import drop_nulls, param_error

# Kinds of constraints, by vLLM's names. A request has at most one kind.
CONSTRAINT_KINDS = frozenset("json regex choice grammar json_object structural_tag".split())
GUIDED_PREFIX = "guided_"
GUIDED_KEYS = frozenset(GUIDED_PREFIX + name for name in (*CONSTRAINT_KINDS, "whitespace_pattern"))
# Keys of objects with constraints, also prefixed ones: vLLM's, vLLM's former, and TACO-LLM's.
STRUCTURED_OUTPUTS = "structured_outputs"
GUIDED_OBJECTS = frozenset({STRUCTURED_OUTPUTS, "guided_decoding", "guided_options_request"})

BACKEND_ADVICE = "vLLM has one backend for the whole endpoint: STRUCTURED_OUTPUTS_CONFIG sets it"
# Parameters that vLLM has removed, each with advice for the caller; guided_X counts as X.
REMOVED_PARAMETERS = {
    "backend": BACKEND_ADVICE,
    "decoding_backend": BACKEND_ADVICE,
    "logits_processors": "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them",
    "truncate_prompt_tokens": "vLLM does not cut prompts while it samples: send a shorter one",
}

# One key of a structured output: the caller's name, vLLM's name, and the value.
Constraint = tuple[str, str, Any]


def normalize_structured_outputs(params: Mapping[str, Any], holder: str) -> dict[str, Any]:
    """Return sampling parameters with structured outputs in vLLM's current spelling.

    Args:
        params: Sampling parameters without null values.
        holder: Name of the object with the parameters, for messages; empty for a body.

    Raises:
        InvalidInput: If a structured output is invalid; the error names the parameter.
    """
    _refuse_removed_parameters(params, holder)
    # ``json_object: false`` constrains nothing.
    constraints = [
        row for row in _find_constraints(params, holder) if row[1:] != ("json_object", False)
    ]
    _refuse_duplicate_constraints(constraints, holder)
    others = {k: v for k, v in params.items() if k not in GUIDED_KEYS | GUIDED_OBJECTS}
    structured = {kind: value for _, kind, value in constraints}
    return {**others, STRUCTURED_OUTPUTS: structured} if structured else others


def _find_constraints(params: Mapping[str, Any], holder: str) -> Iterator[Constraint]:
    for name in sorted(params.keys() & GUIDED_KEYS):
        yield name, name.removeprefix(GUIDED_PREFIX), params[name]
    for name in sorted(params.keys() & GUIDED_OBJECTS):
        if not isinstance(params[name], dict):
            raise param_error(name, "an object", holder)
        nested = drop_nulls(params[name])
        _refuse_removed_parameters(nested, holder)
        for key, value in nested.items():
            yield f"{name}.{key}", key.removeprefix(GUIDED_PREFIX), value


def _refuse_removed_parameters(params: Mapping[str, Any], holder: str) -> None:
    for name in params:
        if replacement := REMOVED_PARAMETERS.get(name.removeprefix(GUIDED_PREFIX)):
            raise param_error(name, f"{name} is gone: {replacement}", holder, add_name=False)


def _refuse_duplicate_constraints(constraints: list[Constraint], holder: str) -> None:
    """Refuse constraints of more than one kind, and one constraint under two names."""
    kinds = [name for name, kind, _ in constraints if kind in CONSTRAINT_KINDS]
    if len(kinds) > 1:
        message = f"an answer is held to one of {', '.join(kinds)}, not more"
        raise param_error(kinds[0], message, holder, add_name=False)
    names: dict[str, str] = {}
    for name, kind, _ in constraints:
        if (other := names.setdefault(kind, name)) != name:
            message = f"{other} and {name} are the same"
            raise param_error(name, message, holder, add_name=False)
