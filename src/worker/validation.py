"""Strict models of what callers send, and the messages that refuse it by the field's name."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from worker.errors import InvalidInput, RequestError

# Bounds of a message: mistakes in it, and characters of a key.
MOST_MISTAKES = 5
LONGEST_KEY = 64
# Bounds of an object's metadata: pairs, and characters of a key and of a value.
MOST_PAIRS = 16
LONGEST_PAIR = (64, 512)

# Messages name its parameters after it, ``param`` names them alone, as vLLM does.
SAMPLING = "sampling_params"


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has half of a surrogate pair, which is no character") from None
    return text


# A text that can be written to a file.
Text = Annotated[str, AfterValidator(_whole)]


def _few(pairs: dict[str, str]) -> dict[str, str]:
    for key, value in pairs.items():
        if len(key) > LONGEST_PAIR[0] or len(value) > LONGEST_PAIR[1]:
            sizes = " and ".join(map(str, LONGEST_PAIR))
            raise ValueError(f"keys and values have at most {sizes} characters")
    if len(pairs) > MOST_PAIRS:
        raise ValueError(f"at most {MOST_PAIRS} pairs")
    return pairs


# What callers attach to an object of the OpenAI API, for themselves.
Metadata = Annotated[dict[Text, Text], AfterValidator(_few)]


class Strict(BaseModel):
    """Frozen, no unknown keys, no conversions, and no values in messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @classmethod
    def of_body(cls, values: Mapping[str, Any], holder: str = "") -> Self:
        """Validate the body of a request, or an object in it; null values count as absent.

        Raises:
            InvalidInput: naming the first few fields that are wrong, without their values.
        """
        try:
            return cls.model_validate(without_nulls(values))
        except ValidationError as error:
            known = [field.alias or name for name, field in cls.model_fields.items()]
            raise invalid_fields(error, known, holder=holder) from None


class Query(BaseModel):
    """A query string; what else stands in it has no effect."""

    # Not strict: all values of a query string are texts.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """Validate a query string; an empty value counts as absent.

        Raises:
            InvalidInput: naming what is wrong.
        """
        try:
            return cls.model_validate({name: value for name, value in query.items() if value})
        except ValidationError as error:
            raise invalid_fields(error) from None


def invalid_fields(
    error: ValidationError,
    known: Iterable[str] = (),
    written: Mapping[str, str] | None = None,
    holder: str = "",
    misplaced: Mapping[str, str] | None = None,
) -> InvalidInput:
    """Return the error for what pydantic refuses: the fields by name, never their values.

    Args:
        error: pydantic's.
        known: keys that an unknown one may have been meant to be.
        written: the names that the caller wrote for fields, where they are others.
        holder: the object that the fields stand in, which is named before them.
        misplaced: keys that have no place there, with what to write.
    """
    fields, messages = [], []
    for mistake in error.errors(include_input=False, include_url=False)[:MOST_MISTAKES]:
        parts = [str(part) for part in (*filter(None, [holder]), *mistake["loc"])] or ["input"]
        parts[0] = (written or {}).get(parts[0], parts[0])
        fields.append(".".join(parts))
        messages.append(
            unknown_key(fields[-1], known, misplaced)
            if mistake["type"] == "extra_forbidden"
            else f"{fields[-1]}: {mistake['msg'].removeprefix('Value error, ')}"
        )
    return InvalidInput("; ".join(messages), param=fields[0].removeprefix(f"{SAMPLING}."))


@contextlib.contextmanager
def of_field(name: str) -> Iterator[None]:
    """Raise what a block refuses as a refusal of the field that the caller wrote."""
    try:
        yield
    except RequestError as error:
        error.message, error.param = f"{name}: {error.message}", name
        raise


def invalid_param(name: str, message: str, holder: str, *, prefixed: bool = True) -> InvalidInput:
    """Return the error for a sampling parameter.

    Args:
        name: the parameter's.
        message: what is wrong with it.
        holder: the object that holds it, which is named first; empty if it is a whole body.
        prefixed: whether to name it in front of the message; else the message names it.
    """
    place = ".".join(filter(None, (holder, name if prefixed else "")))
    return InvalidInput(f"{place}: {message}" if place else message, param=name)


def unknown_key(key: str, known: Iterable[str], misplaced: Mapping[str, str] | None = None) -> str:
    """Return the message that refuses a key, with the nearest known one if any is near.

    Args:
        key: as the caller wrote it.
        known: keys that could stand in its place.
        misplaced: keys that could not, though callers write them, with what to write.
    """
    if len(key) > LONGEST_KEY:
        return f"unknown key {key[:LONGEST_KEY]!r}..."
    elsewhere = misplaced or {}
    near = next(iter(difflib.get_close_matches(key, [*known, *elsewhere], n=1)), key)
    meant = f"did you mean {near!r}? " if near != key else ""
    remedy = f"{meant}{elsewhere.get(near, '')}".strip()
    return f"unknown key {key!r}" + (f": {remedy}" if remedy else "")


def without_nulls(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Leave out null values, which count as absent."""
    return {str(key): value for key, value in values.items() if value is not None}
