"""Sampling parameters whose names outlived vLLM's own: checked here, translated to today's.

All others are vLLM's, and its ``SamplingParams`` checks them, in
``worker.engine.generation.sampling``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from worker.errors import InvalidInput
from worker.job.base import SAMPLING, present

# Every choice has its place in every yield, and a yield has a limit.
MOST_CHOICES = 256

Choices = Annotated[int, Field(ge=1, le=MOST_CHOICES)]

# What an answer is held to is compiled while others wait: characters, and choices.
LONGEST = {"json": 64_000, "regex": 10_000, "grammar": 50_000}
MOST_CHOSEN_FROM = 1_000
LEFT_RECURSION = re.compile(r"^\s*([\w-]+)\s*::=\s*(?:[^\n]*\|\s*)?\1(?![\w-])", re.MULTILINE)

# What an answer can be held to, one at a time: vLLM's names.
KINDS = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})
PREFIX = "guided_"
GUIDED = frozenset(PREFIX + name for name in (*KINDS, "whitespace_pattern"))
# Objects that hold such names, with or without the prefix: vLLM's today, its former, TACO-LLM's.
STRUCTURED = "structured_outputs"
GUIDED_OBJECTS = frozenset({STRUCTURED, "guided_decoding", "guided_options_request"})

# Gone from vLLM, and what replaces them; with or without the prefix.
ONE_BACKEND = "vLLM has one backend for the whole endpoint: STRUCTURED_OUTPUTS_CONFIG sets it"
REPLACED = {
    "backend": ONE_BACKEND,
    "decoding_backend": ONE_BACKEND,
    "logits_processors": "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them",
    "truncate_prompt_tokens": "vLLM does not cut prompts while it samples: send a shorter one",
}

# What may also stand beside sampling_params, where other servers have it.
BESIDE = GUIDED | GUIDED_OBJECTS | {"guided_decoding_backend", "return_token_log_probs"}


class Sampling(BaseModel):
    """``sampling_params``, translated: ``vllm`` is what is left for vLLM's own class."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    n: Choices = 1
    best_of: Choices | None = None
    use_beam_search: bool = False
    length_penalty: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    early_stopping: Literal[False, "never"] = False
    return_token_log_probs: bool = False

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        named = present(given)
        _refuse_replaced(named)
        # A switch that is off holds an answer to nothing.
        guided = [each for each in _guided(named) if each[1:] != ("json_object", False)]
        _refuse_several(guided)
        for name, kind, value in guided:
            _refuse_bomb(name, kind, value)
        rest = {key: value for key, value in named.items() if key not in GUIDED | GUIDED_OBJECTS}
        structured = {name: value for _, name, value in guided}
        return {**rest, STRUCTURED: structured} if structured else rest

    @field_validator("best_of")
    @classmethod
    def _at_least_n(cls, best_of: int, info: ValidationInfo) -> int:
        if best_of < info.data.get("n", 1):
            raise ValueError("at least n, which are chosen from that many")
        return best_of

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _as_vllm_searches(cls, early_stopping: Any) -> Any:
        if early_stopping is True:
            raise ValueError(
                "vLLM's beam search goes on until no better answer can come: false or 'never'"
            )
        return early_stopping

    @field_validator("length_penalty", "early_stopping")
    @classmethod
    def _of_beam_search(cls, value: Any, info: ValidationInfo) -> Any:
        default = cls.model_fields[info.field_name or ""].default
        if value != default and not info.data.get("use_beam_search"):
            raise ValueError("it has an effect in beam search only: set use_beam_search, too")
        return value

    @property
    def width(self) -> int:
        """How many sequences are generated, of which the best ``n`` are returned."""
        return self.best_of or self.n

    @property
    def ranked(self) -> bool:
        """Whether choices must be compared first, so that nothing can be streamed before."""
        return self.use_beam_search or self.width > self.n

    @property
    def vllm(self) -> dict[str, Any]:
        """The parameters for vLLM's own class."""
        given = self.model_extra or {}
        # Of which tokens to tell them is said by one or the other.
        told = {"logprobs": 0} if self.return_token_log_probs else {}
        return given if "logprob_token_ids" in given else {**told, **given}


def _guided(given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield what an answer is held to: the caller's name for it, vLLM's, and the value."""
    for name in sorted(given.keys() & GUIDED):
        yield name, name.removeprefix(PREFIX), given[name]
    for holder in sorted(given.keys() & GUIDED_OBJECTS):
        if not isinstance(given[holder], dict):
            raise InvalidInput(f"{SAMPLING}.{holder}: an object", param=holder)
        held = present(given[holder])
        _refuse_replaced(held)
        for name, value in held.items():
            yield f"{holder}.{name}", name.removeprefix(PREFIX), value


def _refuse_bomb(name: str, kind: str, value: Any) -> None:
    """Refuse what would keep the engine's compiler, and whoever waits for it, busy for long."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        raise InvalidInput(f"{SAMPLING}.{name}: nested too deeply", param=name) from None
    told, most = None, LONGEST.get(kind, LONGEST["json"])
    if len(text) > most:
        told = f"at most {most:,} characters"
    elif kind == "choice" and isinstance(value, list) and len(value) > MOST_CHOSEN_FROM:
        told = f"at most {MOST_CHOSEN_FROM:,} choices"
    elif kind == "grammar" and (rule := LEFT_RECURSION.search(text)):
        told = f"the rule {rule[1]!r} begins with itself and never ends"
    if told:
        raise InvalidInput(f"{SAMPLING}.{name}: {told}", param=name)


def _refuse_several(guided: list[tuple[str, str, Any]]) -> None:
    """Refuse several kinds, and several values of one thing."""
    kinds = [name for name, kind, _ in guided if kind in KINDS]
    if len(kinds) > 1:
        message = f"an answer is held to one of {', '.join(kinds)}, not more"
        raise InvalidInput(f"{SAMPLING}: {message}", param=kinds[0])
    names: dict[str, str] = {}
    for name, vllms, _ in guided:
        if (other := names.setdefault(vllms, name)) != name:
            raise InvalidInput(f"{SAMPLING}: {other} and {name} are the same", param=name)


def _refuse_replaced(given: Mapping[str, Any]) -> None:
    for name in given:
        if told := REPLACED.get(name.removeprefix(PREFIX)):
            raise InvalidInput(f"{SAMPLING}: {name} is gone: {told}", param=name)
