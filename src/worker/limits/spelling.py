"""Structured outputs in all their spellings: vLLM's current and former names, and TACO-LLM's."""

from collections.abc import Iterator, Mapping
from typing import Any

from worker.validation import drop_nulls, invalid_param

# Kinds of constraints, by vLLM's names. A request has at most one kind.
CONSTRAINT_KINDS = frozenset(
    {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}
)
GUIDED_PREFIX = "guided_"
GUIDED_KEYS = frozenset(GUIDED_PREFIX + name for name in (*CONSTRAINT_KINDS, "whitespace_pattern"))
# Keys of objects that hold these kinds, with or without the prefix: vLLM's current key, its former
# key, and TACO-LLM's key.
STRUCTURED_OUTPUTS = "structured_outputs"
GUIDED_OBJECTS = frozenset({STRUCTURED_OUTPUTS, "guided_decoding", "guided_options_request"})

# Parameters that vLLM has removed, with advice for the caller. The names may have the prefix.
ONE_BACKEND = "vLLM has one backend for the whole endpoint: STRUCTURED_OUTPUTS_CONFIG sets it"
REMOVED_PARAMETERS = {
    "backend": ONE_BACKEND,
    "decoding_backend": ONE_BACKEND,
    "logits_processors": "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them",
    "truncate_prompt_tokens": "vLLM does not cut prompts while it samples: send a shorter one",
}

# One key of a structured output: the caller's name, vLLM's name, and the value.
Constraint = tuple[str, str, Any]


def normalize_structured_outputs(params: Mapping[str, Any], holder: str) -> dict[str, Any]:
    """Return sampling parameters with structured outputs in vLLM's current spelling.

    Args:
        params: Sampling parameters without null values.
        holder: Name of the object with the parameters, as ``invalid_param`` expects it.

    Raises:
        InvalidInput: If a structured output is invalid; the error names the parameter.
    """
    _refuse_removed(params, holder)
    # ``json_object: false`` constrains nothing.
    constraints = [
        constraint
        for constraint in _constraints(params, holder)
        if constraint[1:] != ("json_object", False)
    ]
    _refuse_duplicates(constraints, holder)
    others = {
        key: value for key, value in params.items() if key not in GUIDED_KEYS | GUIDED_OBJECTS
    }
    structured = {kind: value for _, kind, value in constraints}
    return {**others, STRUCTURED_OUTPUTS: structured} if structured else others


def _constraints(params: Mapping[str, Any], holder: str) -> Iterator[Constraint]:
    for name in sorted(params.keys() & GUIDED_KEYS):
        yield name, name.removeprefix(GUIDED_PREFIX), params[name]
    for name in sorted(params.keys() & GUIDED_OBJECTS):
        if not isinstance(params[name], dict):
            raise invalid_param(name, "an object", holder)
        nested = drop_nulls(params[name])
        _refuse_removed(nested, holder)
        for key, value in nested.items():
            yield f"{name}.{key}", key.removeprefix(GUIDED_PREFIX), value


def _refuse_removed(params: Mapping[str, Any], holder: str) -> None:
    for name in params:
        if replacement := REMOVED_PARAMETERS.get(name.removeprefix(GUIDED_PREFIX)):
            raise invalid_param(name, f"{name} is gone: {replacement}", holder, add_name=False)


def _refuse_duplicates(constraints: list[Constraint], holder: str) -> None:
    """Refuse constraints of more than one kind, and one constraint under two names."""
    kinds = [name for name, kind, _ in constraints if kind in CONSTRAINT_KINDS]
    if len(kinds) > 1:
        message = f"an answer is held to one of {', '.join(kinds)}, not more"
        raise invalid_param(kinds[0], message, holder, add_name=False)
    names: dict[str, str] = {}
    for name, kind, _ in constraints:
        if (other := names.setdefault(kind, name)) != name:
            message = f"{other} and {name} are the same"
            raise invalid_param(name, message, holder, add_name=False)
