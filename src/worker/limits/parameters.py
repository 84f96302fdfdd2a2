"""The most that sampling parameters may ask for: one table for both paths. Pure.

The runner of vLLM's models on GPUs writes parameters into rows of fixed length and width. What does
not fit there raises in the step that all requests share, and ends the engine. Other bounds keep the
work small that is done for each token, or numbers finite.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.validation import invalid_param

INT32 = 2**31 - 1
INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or a text that vLLM's server reads as one."""

    least: float
    most: float
    # Whether the least itself is too little.
    above: bool = False

    def refusal(self, value: Any) -> str | None:
        number = _number(value)
        if number is None:
            return None
        fits = (number > self.least if self.above else number >= self.least) and number <= self.most
        return None if fits else self.words

    @property
    def words(self) -> str:
        least = f"above {self.least:,}" if self.above else f"from {self.least:,}"
        return f"{least} to {self.most:,}"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of so many different items, of which each text has so many characters."""

    most: int
    longest: int | None = None

    def refusal(self, value: Any) -> str | None:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            return None
        if len(items) > self.most:
            return f"{len(items):,} of them, at most {self.most}"
        lengths = [len(item) for item in items if isinstance(item, str)]
        if self.longest and max(lengths, default=0) > self.longest:
            return f"one has {max(lengths):,} characters, at most {self.longest}"
        return None

    @property
    def words(self) -> str:
        characters = f", each of {self.longest} characters" if self.longest else ""
        return f"{self.most} items{characters}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """An object of so many numbers, each of them within a bound."""

    most: int
    each: Number

    def refusal(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        if len(value) > self.most:
            return f"{len(value):,} of them, at most {self.most}"
        return next(filter(None, map(self.each.refusal, value.values())), None)

    @property
    def words(self) -> str:
        return f"{self.most} keys, each value {self.each.words}"


@dataclass(frozen=True, slots=True)
class Parts:
    """An object whose parts have bounds of their own."""

    bounds: Mapping[str, Number]

    def refusal(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        for name, bound in self.bounds.items():
            if message := bound.refusal(value.get(name)):
                return f"{name}: {message}"
        return None

    @property
    def words(self) -> str:
        return ", ".join(f"`{name}` {bound.words}" for name, bound in self.bounds.items())


# Says what is wrong with a value, and itself in words. Values of wrong types are left to vLLM,
# which refuses them.
Bound = Number | Items | Numbers | Parts

_INT32 = Number(-INT32, INT32)
_TEXTS = Items(64, longest=256)

# What vLLM checks itself with the same bound is not repeated: temperature, top_p, min_p.
BOUNDS: dict[str, Bound] = {
    "max_tokens": _INT32,
    "max_completion_tokens": _INT32,
    "max_output_tokens": _INT32,
    "min_tokens": _INT32,
    "top_k": _INT32,
    "logprobs": _INT32,
    "top_logprobs": _INT32,
    "prompt_logprobs": _INT32,
    "truncate_prompt_tokens": _INT32,
    "thinking_token_budget": _INT32,
    "routed_experts_prompt_start": _INT32,
    "stream_interval": _INT32,
    "max_tool_calls": _INT32,
    "seed": Number(-INT64 - 1, INT64),
    "stop": _TEXTS,
    "stop_sequences": _TEXTS,
    "bad_words": _TEXTS,
    "stop_token_ids": Items(64),
    "allowed_token_ids": Items(300),
    "logprob_token_ids": Items(128),
    "logit_bias": Numbers(300, Number(-100, 100)),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "repetition_penalty": Number(0, 10, above=True),
    "length_penalty": Number(-10, 10),
    # The time of each token grows with the size of patterns and with their square.
    "repetition_detection": Parts(
        {
            "max_pattern_size": Number(0, 256),
            "min_pattern_size": Number(0, 256),
            "min_count": Number(0, 256),
        }
    ),
}


def check_parameters(params: Mapping[str, Any], holder: str) -> None:
    """Check sampling parameters, or a body that has them.

    Args:
        params: without repeated items (``distinct``).
        holder: the object that holds them, as ``invalid_param`` takes it.

    Raises:
        InvalidInput: naming the parameter that is beyond its bound.
    """
    for name in BOUNDS.keys() & params.keys():
        if message := BOUNDS[name].refusal(params[name]):
            raise invalid_param(name, message, holder)


def distinct(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with each item of their lists once: vLLM counts each of some lists."""
    changed = dict(params)
    for name in BOUNDS.keys() & params.keys():
        value = params[name]
        if isinstance(value, list) and set(map(type, value)) in ({int}, {str}):
            changed[name] = list(dict.fromkeys(value))
    return changed


def cut(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return raw sampling parameters with as many ``max_tokens`` as the engine can count."""
    most = params.get("max_tokens")
    return {**params, "max_tokens": INT32} if type(most) is int and most > INT32 else dict(params)


def _number(value: Any) -> float | int | None:
    """Return a number as it is: as a float, the largest integers would be rounded."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return None
