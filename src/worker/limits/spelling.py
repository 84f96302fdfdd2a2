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
# Key of vLLM's former spelling that chooses a backend for one request.
FORMER_BACKEND = "guided_decoding_backend"

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

    Some clients send the same constraint in vLLM's current spelling and its former one, so that
    every release understands it.

    Args:
        params: Sampling parameters without null values.
        holder: Name of the object with the parameters, for messages; empty for a body.

    Raises:
        InvalidInput: If a structured output is invalid; the error names the parameter.
    """
    if params.get(STRUCTURED_OUTPUTS):
        # The backend belongs to the former spelling, and vLLM ignores it.
        params = {name: value for name, value in params.items() if name != FORMER_BACKEND}
    params = _without_removed_parameters(params, holder)
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
        nested = _without_removed_parameters(drop_nulls(params[name]), holder)
        for key, value in nested.items():
            yield f"{name}.{key}", key.removeprefix(GUIDED_PREFIX), value


def _without_removed_parameters(params: Mapping[str, Any], holder: str) -> Mapping[str, Any]:
    """Refuse parameters that vLLM has removed, and drop those of them that are empty."""
    replacements = {
        name: REMOVED_PARAMETERS.get(name.removeprefix(GUIDED_PREFIX)) for name in params
    }
    for name, replacement in replacements.items():
        if replacement and params[name]:
            raise param_error(name, f"{name} is gone: {replacement}", holder, add_name=False)
    return {name: params[name] for name in params if not replacements[name]}


def _refuse_duplicate_constraints(constraints: list[Constraint], holder: str) -> None:
    """Refuse constraints of more than one kind, and different values of one constraint."""
    found: dict[str, tuple[str, Any]] = {}
    for name, kind, value in constraints:
        other, other_value = found.setdefault(kind, (name, value))
        if value != other_value:
            message = f"{other} and {name} set the same constraint to different values"
            raise param_error(name, message, holder, add_name=False)
    kinds = [name for kind, (name, _) in found.items() if kind in CONSTRAINT_KINDS]
    if len(kinds) > 1:
        message = f"an answer can be constrained by one of {', '.join(kinds)}, not more"
        raise param_error(kinds[0], message, holder, add_name=False)
