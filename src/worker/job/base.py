"""What every shape of a job's input shares: its chunk keys, and how a wrong one is refused."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.errors import InvalidInput

# A message names no more mistakes than these, and of no key more characters.
MOST_TOLD = 5
LONGEST_KEY = 64

# Parameters of this object are named without it, as vLLM names them.
SAMPLING = "sampling_params"

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen, no unknown keys, no conversions, and no values in messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Job(Strict):
    """A validated input. What may stand in every shape: how its stream is chunked.

    Of the three sizes 0 or null means the worker's default; of the delay null does, 0 is off.
    """

    # Keys of which each tells that an input has this shape, and other names for its keys.
    marks: ClassVar[frozenset[str]]
    other_names: ClassVar[Mapping[str, str]] = {}

    max_batch_size: Annotated[int, Field(ge=0)] | None = None
    min_batch_size: Amount | None = None
    batch_size_growth_factor: Amount | None = None
    max_batch_delay_ms: Amount | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Validate an input without null values.

        Raises:
            InvalidInput: naming the first few fields that are wrong; never what stood there.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as invalid:
            raise cls._refusal(invalid, given) from None

    @classmethod
    def _refusal(cls, invalid: ValidationError, given: Mapping[str, Any]) -> InvalidInput:
        known = {*cls.model_fields, *cls.other_names.values()}
        told, fields = [], []
        for error in invalid.errors(include_input=False, include_url=False)[:MOST_TOLD]:
            first, *rest = (str(part) for part in error["loc"] or ("input",))
            # A caller is told of the name that the caller wrote.
            other = cls.other_names.get(first, first)
            fields.append(".".join((other if other in given else first, *rest)))
            told.append(
                unknown_key(fields[-1], known)
                if error["type"] == "extra_forbidden"
                else f"{fields[-1]}: {error['msg'].removeprefix('Value error, ')}"
            )
        return InvalidInput("; ".join(told), param=fields[0].removeprefix(f"{SAMPLING}."))


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Refuse a key by name, with the nearest known one."""
    if len(key) > LONGEST_KEY:
        return f"unknown key {key[:LONGEST_KEY]!r}..."
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"unknown key {key!r}" + (f": did you mean {near[0]!r}?" if near else "")


def present(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Leave out null values, which count as absent."""
    return {str(key): value for key, value in given.items() if value is not None}


def opened(conversation: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """Put the operator's words first, where a conversation has none of their kind."""
    roles = {str(message.get("role")) for message in conversation}
    if system is None or roles & {"system", "developer"}:
        return conversation
    return [{"role": "system", "content": system}, *conversation]
