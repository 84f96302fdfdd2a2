"""Limits for the size of a job's input, checked before anything else reads the input."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from worker.errors import InputTooLarge, InvalidInput
from worker.settings import Settings

MEGABYTE = 1_000_000
# Bytes counted for each value: a number, a boolean, null or brackets. Text counts in addition.
BYTES_PER_VALUE = 4
MAX_KEY_CHARACTERS = 256
# Maximum token ids in an input. A list of only integers counts as token ids. Token ids don't count
# as values, since a context holds many of them and they are checked quickly.
MAX_TOKEN_IDS = 1_500_000
# Integers that MessagePack can represent, the encoding of messages to the engine core.
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1

# Limits for a path in an error message: characters of one name, and number of names.
MAX_NAME_CHARACTERS = 64
MAX_NAMES = 8

# Place of a value: the place of its container, and its key or index there. None for the input.
Place = tuple[Any, str | int] | None

_DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Limits for the size of a job's input.

    Args:
        megabytes: Megabytes of text, keys and numbers, as UTF-8.
        values: Number of values at any depth, not counting token ids.
        depth: Levels of nested objects and lists.
        items: Items of a list, unless it contains only token ids, and keys of an object.
    """

    megabytes: float = _DEFAULTS["max_input_mb"]
    values: int = _DEFAULTS["max_input_values"]
    depth: int = _DEFAULTS["max_input_depth"]
    items: int = _DEFAULTS["max_input_items"]

    @classmethod
    def from_settings(cls, settings: Settings) -> "InputLimits":
        return cls(
            settings.max_input_mb,
            settings.max_input_values,
            settings.max_input_depth,
            settings.max_input_items,
        )

    def check_input(self, payload: Any) -> None:
        """Check an input; without recursion, since a deep input would exhaust the stack.

        Raises:
            InputTooLarge: If the input has too many bytes.
            InvalidInput: If the input exceeds another limit.
        """
        max_bytes = int(self.megabytes * MEGABYTE)
        value_count = id_count = size = 0
        pending: list[tuple[Any, Place, int]] = [([payload], None, 0)]
        while pending:
            container, place, depth = pending.pop()
            if depth > self.depth:
                raise _limit_error(place, f"more than {self.depth} levels deep", "MAX_INPUT_DEPTH")
            size += BYTES_PER_VALUE * len(container)
            if type(container) is list and _are_token_ids(container):
                id_count += len(container)
                _check_token_ids(container, id_count, place)
            else:
                value_count += len(container)
                self._check_value_count(len(container), value_count, place)
                size += _scan_container(container, place, depth, pending)
            if size > max_bytes:
                message = f"the input has more than {max_bytes:,} bytes (MAX_INPUT_MB)"
                raise InputTooLarge(message, param=_dotted_path(place))

    def _check_value_count(self, count: int, total: int, place: Place) -> None:
        if count > self.items:
            raise _limit_error(place, f"{count:,} items, at most {self.items:,}", "MAX_INPUT_ITEMS")
        if total > self.values:
            message = f"with its {count:,} items the input has more than {self.values:,} values"
            raise _limit_error(place, message, "MAX_INPUT_VALUES")


def _are_token_ids(items: list[Any]) -> bool:
    """Return whether a list contains only integers; booleans don't count as integers."""
    return type(items[0]) is int and set(map(type, items)) == {int}


def _check_token_ids(ids: list[int], total: int, place: Place) -> None:
    if total > MAX_TOKEN_IDS:
        message = f"with its {len(ids):,} numbers the input has more than {MAX_TOKEN_IDS:,}"
        raise _limit_error(place, f"{message} in lists of numbers")
    if min(ids) < MIN_INTEGER or max(ids) > MAX_INTEGER:
        raise _integer_error(place)


def _scan_container(
    values: Any, place: Place, depth: int, pending: list[tuple[Any, Place, int]]
) -> int:
    """Check keys and integers; return bytes of text, and append containers to ``pending``."""
    if isinstance(values, dict):
        size = sum(map(len, values))
        if size > MAX_KEY_CHARACTERS and (longest := max(map(len, values))) > MAX_KEY_CHARACTERS:
            message = f"a key of {longest:,} characters, at most {MAX_KEY_CHARACTERS}"
            raise _limit_error(place, message)
        items: Iterable[tuple[Any, Any]] = values.items()
    else:
        size, items = 0, enumerate(values)
    for key, value in items:
        kind = type(value)
        if kind is str:
            # ``isascii`` is immediate: Python stores whether a string is ASCII.
            size += len(value) if value.isascii() else len(value.encode(errors="replace"))
        elif kind is int:
            if not MIN_INTEGER <= value <= MAX_INTEGER:
                raise _integer_error((place, key) if depth else None)
        elif value and (kind is dict or kind is list):
            pending.append((value, (place, key) if depth else None, depth + 1))
    return size


def _integer_error(place: Place) -> InvalidInput:
    return _limit_error(place, "an integer has more than 64 bits")


def _limit_error(place: Place, message: str, setting: str | None = None) -> InvalidInput:
    name = _dotted_path(place)
    limit = f" ({setting})" if setting else ""
    return InvalidInput(f"{name or 'the input'}: {message}{limit}", param=name)


def _dotted_path(place: Place) -> str | None:
    """Return a shortened path such as openai_input.messages.0.content; None for the whole input."""
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name)[:MAX_NAME_CHARACTERS])
    if len(names) > MAX_NAMES:
        names = [*names[: MAX_NAMES // 2], "...", *names[-MAX_NAMES // 2 :]]
    return ".".join(reversed(names)) or None
