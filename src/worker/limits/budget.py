"""How much a job's input may hold: counted once, before anything else looks at it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from worker.errors import InputTooLarge, InvalidInput
from worker.settings import Settings

MEGABYTE = 1_000_000
# What a value has besides its text: a number, a boolean, null, brackets.
BYTES_OF_A_VALUE = 4
LONGEST_KEY = 256  # characters
# Numbers in lists of nothing else are token ids, which are no values: a context holds many, and
# they are checked quickly.
MOST_TOKEN_IDS = 1_500_000
# What the encoding for the engine's core has room for.
LEAST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1

# Of a place in a message: characters of a name, and names.
LONGEST_NAME = 64
MOST_NAMES = 8

# Where a value stands: its holder's place, and its key or index. The input's own is None.
Place = tuple[Any, str | int] | None

_defaults = {name: field.default for name, field in Settings.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that an input may hold.

    Args:
        megabytes: of text, keys and numbers, as UTF-8.
        values: everything but token ids, however deep inside.
        depth: objects and lists inside one another.
        items: of a list, unless it is of token ids; keys of an object.
    """

    megabytes: float = _defaults["max_input_mb"]
    values: int = _defaults["max_input_values"]
    depth: int = _defaults["max_input_depth"]
    items: int = _defaults["max_input_items"]

    @classmethod
    def of(cls, settings: Settings) -> "Budget":
        """Return the budget that the operator has set."""
        return cls(
            settings.max_input_mb,
            settings.max_input_values,
            settings.max_input_depth,
            settings.max_input_items,
        )

    def check(self, payload: Any) -> None:
        """Count an input, without recursion: a deep input must not exhaust the stack.

        Raises:
            InputTooLarge: it has too many bytes.
            InvalidInput: it has too much of something else.
        """
        most_bytes = int(self.megabytes * MEGABYTE)
        values = ids = size = 0
        waiting: list[tuple[Any, Place, int]] = [([payload], None, 0)]
        while waiting:
            holder, place, depth = waiting.pop()
            if depth > self.depth:
                raise _refusal(place, f"more than {self.depth} levels deep", "MAX_INPUT_DEPTH")
            size += BYTES_OF_A_VALUE * len(holder)
            if type(holder) is list and _are_ids(holder):
                ids += len(holder)
                _check_ids(holder, ids, place)
            else:
                values += len(holder)
                self._check_counts(len(holder), values, place)
                size += _size(holder, place, depth, waiting)
            if size > most_bytes:
                message = f"the input has more than {most_bytes:,} bytes (MAX_INPUT_MB)"
                raise InputTooLarge(message, param=_name(place))

    def _check_counts(self, count: int, values: int, place: Place) -> None:
        if count > self.items:
            raise _refusal(place, f"{count:,} items, at most {self.items:,}", "MAX_INPUT_ITEMS")
        if values > self.values:
            message = f"with its {count:,} items the input has more than {self.values:,} values"
            raise _refusal(place, message, "MAX_INPUT_VALUES")


def _are_ids(items: list[Any]) -> bool:
    """Return whether a list holds whole numbers and nothing else; true is none of them."""
    return type(items[0]) is int and set(map(type, items)) == {int}


def _check_ids(ids: list[int], so_far: int, place: Place) -> None:
    if so_far > MOST_TOKEN_IDS:
        message = f"with its {len(ids):,} numbers the input has more than {MOST_TOKEN_IDS:,}"
        raise _refusal(place, f"{message} in lists of numbers")
    if min(ids) < LEAST_INTEGER or max(ids) > LARGEST_INTEGER:
        raise _too_wide(place)


def _size(holder: Any, place: Place, depth: int, waiting: list[tuple[Any, Place, int]]) -> int:
    """Return the bytes of the text in a list or an object; append those in it that hold more."""
    if isinstance(holder, dict):
        size = sum(map(len, holder))
        if size > LONGEST_KEY and (longest := max(map(len, holder))) > LONGEST_KEY:
            raise _refusal(place, f"a key of {longest:,} characters, at most {LONGEST_KEY}")
        items: Iterable[tuple[Any, Any]] = holder.items()
    else:
        size, items = 0, enumerate(holder)
    for key, value in items:
        kind = type(value)
        if kind is str:
            # Whether a text is ASCII is known without looking at it.
            size += len(value) if value.isascii() else len(value.encode(errors="replace"))
        elif kind is int:
            if not LEAST_INTEGER <= value <= LARGEST_INTEGER:
                raise _too_wide((place, key) if depth else None)
        elif value and (kind is dict or kind is list):
            waiting.append((value, (place, key) if depth else None, depth + 1))
    return size


def _too_wide(place: Place) -> InvalidInput:
    return _refusal(place, "an integer has more than 64 bits")


def _refusal(place: Place, message: str, setting: str | None = None) -> InvalidInput:
    name = _name(place)
    limit = f" ({setting})" if setting else ""
    return InvalidInput(f"{name or 'the input'}: {message}{limit}", param=name)


def _name(place: Place) -> str | None:
    """Return a place as other messages have it: openai_input.messages.0.content."""
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name)[:LONGEST_NAME])
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES // 2], "...", *names[-MOST_NAMES // 2 :]]
    return ".".join(reversed(names)) or None
