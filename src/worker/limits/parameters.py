"""Sampling parameters in raw jobs and in request bodies: their bounds and their spelling.

vLLM's model runner for GPUs writes parameters into arrays of fixed length and width. A parameter
that does not fit raises in the step that all requests share, and the engine dies. Other limits
bound the work for each token, or keep numbers finite. Structured outputs have several spellings:
vLLM's current and former names, and TACO-LLM's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.errors import InvalidInput, field_error
from worker.validation import drop_nulls

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

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NumberBound:
    """A range for a number, or for a string that vLLM's server parses as a number."""

    minimum: float
    maximum: float
    # Whether the minimum itself is too low.
    is_exclusive: bool = False

    def violation_message(self, value: Any) -> str | None:
        number = parse_number(value)
        if number is None:
            return None
        is_above_minimum = number > self.minimum if self.is_exclusive else number >= self.minimum
        return None if is_above_minimum and number <= self.maximum else self.description

    @property
    def description(self) -> str:
        lower = f"above {self.minimum:,}" if self.is_exclusive else f"from {self.minimum:,}"
        return f"{lower} to {self.maximum:,}"


@dataclass(frozen=True, slots=True)
class ListBound:
    """Limits for the items of a list (a string counts as one item), and the characters of each."""

    max_items: int
    max_characters: int | None = None

    def violation_message(self, value: Any) -> str | None:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            return None
        if len(items) > self.max_items:
            return f"{len(items):,} of them, at most {self.max_items:,}"
        lengths = [len(item) for item in items if isinstance(item, str)]
        if self.max_characters and max(lengths, default=0) > self.max_characters:
            return f"one has {max(lengths):,} characters, at most {self.max_characters:,}"
        return None

    @property
    def description(self) -> str:
        characters = f", each of {self.max_characters:,} characters" if self.max_characters else ""
        return f"{self.max_items:,} items{characters}"


@dataclass(frozen=True, slots=True)
class NumberMapBound:
    """A limit for the number of keys in an object, and a range for its values."""

    max_items: int
    value_bound: NumberBound

    def violation_message(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        if len(value) > self.max_items:
            return f"{len(value):,} of them, at most {self.max_items:,}"
        return next(filter(None, map(self.value_bound.violation_message, value.values())), None)

    @property
    def description(self) -> str:
        return f"{self.max_items:,} keys, each value {self.value_bound.description}"


@dataclass(frozen=True, slots=True)
class ObjectBound:
    """Ranges for the fields of an object."""

    bounds: Mapping[str, NumberBound]

    def violation_message(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        for name, bound in self.bounds.items():
            if message := bound.violation_message(value.get(name)):
                return f"{name}: {message}"
        return None

    @property
    def description(self) -> str:
        return ", ".join(f"`{name}` {bound.description}" for name, bound in self.bounds.items())


# ``violation_message`` returns an error message for a value; ``description`` is the bound as text.
# vLLM itself refuses values of wrong types.
Bound = NumberBound | ListBound | NumberMapBound | ObjectBound

_INT32 = NumberBound(-MAX_INT32, MAX_INT32)
# All of these characters are searched for each token: 0.1 ms.
_STRINGS = ListBound(64, max_characters=4_096)

# vLLM's own limits are not repeated here. The lists are as long as the arrays on a GPU, which also
# hold the model's own ids for the end of a text; the comparisons and ``stop`` take time in each
# step; the penalties divide by a power of the length, or overflow in 32 bits.
BOUNDS: dict[str, Bound] = {
    "top_k": _INT32,
    "thinking_token_budget": _INT32,
    "seed": NumberBound(-MAX_INT64 - 1, MAX_INT64),
    "stop": _STRINGS,
    "stop_sequences": _STRINGS,
    "bad_words": _STRINGS,
    "stop_token_ids": ListBound(64),
    "allowed_token_ids": ListBound(1_024),
    "logprob_token_ids": ListBound(128),
    "logit_bias": NumberMapBound(1_024, NumberBound(-100, 100)),
    "repetition_penalty": NumberBound(0, 10, is_exclusive=True),
    "length_penalty": NumberBound(-10, 10),
    # ``worker.limits.work`` bounds the work that they multiply to.
    "repetition_detection": ObjectBound(
        {
            "max_pattern_size": NumberBound(0, 256),
            "min_pattern_size": NumberBound(0, 256),
            "min_count": NumberBound(0, 256),
        }
    ),
}


def check_parameter_bounds(params: Mapping[str, Any], holder: str) -> None:
    """Check sampling parameters, or a body that contains them, without duplicate items in lists.

    ``holder`` is the name of the object with the parameters, for messages; empty for a body.
    """
    for name in BOUNDS.keys() & params.keys():
        if message := BOUNDS[name].violation_message(params[name]):
            raise field_error(name, message, holder)


def remove_duplicate_items(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without duplicates in bounded lists, since vLLM may count duplicates."""
    changed = dict(params)
    for name in BOUNDS.keys() & params.keys():
        value = params[name]
        if isinstance(value, list) and set(map(type, value)) in ({int}, {str}):
            changed[name] = list(dict.fromkeys(value))
    return changed


def cap_max_tokens(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw job's parameters with ``max_tokens`` limited to the engine's 32 bits."""
    max_tokens = params.get("max_tokens")
    if type(max_tokens) is int and max_tokens > MAX_INT32:
        return {**params, "max_tokens": MAX_INT32}
    return dict(params)


def parse_number(value: Any) -> float | int | None:
    """Return a number, or the number in a string (an integer stays exact); None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return value
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return None


def normalize_structured_outputs(params: Mapping[str, Any], holder: str) -> dict[str, Any]:
    """Return sampling parameters with structured outputs in vLLM's current spelling.

    Some clients send the same constraint in vLLM's current spelling and its former one, so that
    every release understands it. Different values, or constraints of two kinds, are refused.
    ``params`` have no null values.
    """
    if params.get(STRUCTURED_OUTPUTS):
        # The backend belongs to the former spelling, and vLLM ignores it.
        params = {name: value for name, value in params.items() if name != FORMER_BACKEND}
    params = _without_removed_parameters(params, holder)
    found = {name: (name, params[name]) for name in sorted(params.keys() & GUIDED_KEYS)}
    for name in sorted(params.keys() & GUIDED_OBJECTS):
        if not isinstance(params[name], dict):
            raise field_error(name, "an object", holder)
        nested = _without_removed_parameters(drop_nulls(params[name]), holder)
        found |= {f"{name}.{key}": (key, value) for key, value in nested.items()}

    # The first name and the value of each constraint, by vLLM's name for it.
    constraints: dict[str, tuple[str, Any]] = {}
    for name, (key, value) in found.items():
        kind = key.removeprefix(GUIDED_PREFIX)
        if (kind, value) == ("json_object", False):  # it constrains nothing
            continue
        other, other_value = constraints.setdefault(kind, (name, value))
        if value != other_value:
            message = f"{other} and {name} set the same constraint to different values"
            raise _named_error(name, message, holder)
    kinds = [name for kind, (name, _) in constraints.items() if kind in CONSTRAINT_KINDS]
    if len(kinds) > 1:
        message = f"an answer can be constrained by one of {', '.join(kinds)}, not more"
        raise _named_error(kinds[0], message, holder)

    others = {k: v for k, v in params.items() if k not in GUIDED_KEYS | GUIDED_OBJECTS}
    structured = {kind: value for kind, (_, value) in constraints.items()}
    return {**others, STRUCTURED_OUTPUTS: structured} if structured else others


def _named_error(name: str, message: str, holder: str) -> InvalidInput:
    return InvalidInput(f"{holder}: {message}" if holder else message, param=name)


def _without_removed_parameters(params: Mapping[str, Any], holder: str) -> Mapping[str, Any]:
    """Refuse parameters that vLLM has removed, and drop those of them that are empty."""
    replacements = {
        name: REMOVED_PARAMETERS.get(name.removeprefix(GUIDED_PREFIX)) for name in params
    }
    for name, replacement in replacements.items():
        if replacement and params[name]:
            raise _named_error(name, f"{name} is gone: {replacement}", holder)
    return {name: params[name] for name in params if not replacements[name]}
