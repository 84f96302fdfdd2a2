"""The error for a request's body of the wrong shape, from pydantic's list of errors.

For a value that may be of several types, pydantic lists the errors of each of these alternatives.
The caller meant one of them: the one that the value fits best. Only its errors are reported.
"""

import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import NamedTuple

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from worker.errors import InvalidInput
from worker.validation import MAX_KEY_LENGTH, MAX_MISTAKES

# Matches field names and list indexes in the locations of pydantic's errors. The other parts of a
# location, and ``TYPE_LABELS``, are labels for the alternatives of a union.
FIELD_NAME = re.compile(r"[a-z0-9_]+")
TYPE_LABELS = frozenset({"str", "int", "float", "bool", "dict", "list"})
# pydantic's types of errors: for a value of another type (endings), another constant, no value.
TYPE_ERRORS = ("_type", "_parsing", "instance_of", "sequence_str")
# The label of models with validators of their own, which all have the same one.
MIXED_LABEL = "function-"
# Classes of vLLM and its libraries in pydantic's messages.
CLASS_NAME = re.compile(r" or (instance of \w+|object to extract fields from)")
LITERAL_ERROR, MISSING = "literal_error", "missing"
# Beginning of the messages for a value of another type, and maximum number of types in a message.
EXPECTED, MAX_EXPECTATIONS = "Input should be ", 8
# Maximum number of errors to read for one message. A list has several per wrong item.
MAX_ERRORS = 3_000


class _BodyError(NamedTuple):
    """One of pydantic's errors: its location with the labels of alternatives, type and message."""

    location: tuple[str, ...]
    type: str
    message: str

    def fields_from(self, depth: int) -> list[str]:
        """Return the names and indexes in the location from an index on, without labels."""
        return [part for part in self.location[depth:] if not _is_label(part)]

    @property
    def path(self) -> str:
        return ".".join(self.fields_from(0))

    @property
    def expectation(self) -> str:
        """The type or the constants that are expected, without details of the value."""
        text = self.message.removeprefix(EXPECTED)
        return text if self.type == LITERAL_ERROR else text.partition(",")[0]


def invalid_body_error(invalid: ValidationError | RequestValidationError) -> InvalidInput:
    """Return the error for a body of the wrong shape; its message names fields, not values."""
    errors = []
    for error in invalid.errors()[:MAX_ERRORS]:
        # Keys of the caller's own objects can have megabytes.
        location = tuple(str(part)[:MAX_KEY_LENGTH] for part in error["loc"])
        # FastAPI's locations begin with the body.
        location = location[1:] if location[:1] == ("body",) else location
        message = CLASS_NAME.sub("", error["msg"]).removeprefix("Value error, ")
        errors.append(_BodyError(location, error["type"], message))
    mistakes = _find_mistakes(errors)
    # A validator of the whole body has no path.
    messages = dict.fromkeys(": ".join(filter(None, (one.path, one.message))) for one in mistakes)
    param = mistakes[0].path if mistakes else None
    return InvalidInput("; ".join([*messages][:MAX_MISTAKES]), param=param or None)


def _find_mistakes(
    errors: list[_BodyError], depth: int = 0, *, is_mixed: bool = False
) -> list[_BodyError]:
    """Return the errors that concern the caller, of those with a common location up to ``depth``.

    The location has the labels of alternatives. ``is_mixed`` means that the errors are of several
    alternatives, which have the same label.
    """
    children: defaultdict[str, list[_BodyError]] = defaultdict(list)
    for error in errors:
        children["".join(error.location[depth : depth + 1])].append(error)
    labels = [part for part in children if _is_label(part)]
    if labels:
        alternatives = [(children[label], depth + 1) for label in labels]
        if others := [error for part in children if part not in labels for error in children[part]]:
            alternatives.append((others, depth))
        best, best_depth = min(alternatives, key=lambda one: _misfit(*one))
        if labels[0].startswith(MIXED_LABEL):
            return _find_mistakes(_drop_absent(best, best_depth), best_depth, is_mixed=True)
        mistakes = _find_mistakes(best, best_depth, is_mixed=is_mixed)
        every = [error for child in children.values() for error in child]
        return _join_expectations(mistakes, every)
    here = children.pop("", [])
    mistakes = _join_expectations(here[:1], here)
    chosen = [*children.values()]
    if is_mixed and _frequency(most := max(chosen, key=_frequency, default=[]))[0] > 1:
        # An error of few alternatives is of some that the caller didn't mean.
        chosen = [most]
    for child in chosen:
        mistakes += _find_mistakes(child, depth + 1, is_mixed=is_mixed)
    return mistakes


def _misfit(errors: list[_BodyError], depth: int) -> tuple[bool, int, int, int]:
    """Return how badly a value fits an alternative with these errors; the lowest fits best.

    A value of another type fits worst, and one with another constant, such as a ``type``, badly.
    """
    is_other_type = any(
        error.type.endswith(TYPE_ERRORS) and not error.fields_from(depth) for error in errors
    )
    direct = [error.type for error in errors if len(error.fields_from(depth)) == 1]
    return is_other_type, direct.count(LITERAL_ERROR), direct.count(MISSING), len(errors)


def _frequency(errors: list[_BodyError]) -> tuple[int, int]:
    """Return the number of alternatives with the most frequent error, and the number of errors."""
    counts = Counter(error.location for error in errors)
    return max(counts.values(), default=0), len(errors)


def _drop_absent(errors: list[_BodyError], depth: int) -> list[_BodyError]:
    """Drop the errors of alternatives that the caller didn't choose, by the fields that it sent.

    A missing field says so, or another ``type``, unless there are no other errors. If all errors
    are missing fields of several alternatives, they become one.
    """

    def rank(error: _BodyError) -> int:
        names = error.fields_from(depth)
        if len(names) > 1:
            return 0
        return 2 * (error.type == MISSING) + (error.type == LITERAL_ERROR and names == ["type"])

    lowest = min(map(rank, errors))
    relevant = [error for error in errors if rank(error) == lowest]
    if relevant[0].type != MISSING or len(set(errors)) == len(errors):
        return relevant
    _, *others = dict.fromkeys(error.path for error in relevant)
    more = f", or {', '.join(others)}" if others else ""
    return [relevant[0]._replace(message=f"{relevant[0].message}{more}")]


def _join_expectations(mistakes: list[_BodyError], errors: list[_BodyError]) -> list[_BodyError]:
    """Add the types or constants that other alternatives expect to the message for a wrong one."""
    if len(mistakes) != 1:
        return mistakes
    (mistake,) = mistakes
    kinds = (LITERAL_ERROR,) if mistake.type == LITERAL_ERROR else TYPE_ERRORS
    same = [one for one in errors if one.path == mistake.path and one.type.endswith(kinds)]
    # An abstract class says no more than the list that another alternative expects.
    concrete = [one for one in [mistake, *same] if one.type != "is_instance_of"]
    expected = list(dict.fromkeys(one.expectation for one in concrete))[:MAX_EXPECTATIONS]
    if len(expected) < 2 or mistake not in same:
        return mistakes
    return [mistake._replace(message=f"{EXPECTED}{' or '.join(expected)}")]


@lru_cache(maxsize=1024)
def _is_label(part: str) -> bool:
    return part in TYPE_LABELS or (part != "" and not FIELD_NAME.fullmatch(part))
