"""Many prompts as jobs of a size that the platform and the worker take."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_worker_client.llm.prompts import Item, encoded

# Of a job: bytes of what it holds (above 10 MB it could not be cancelled), values and token ids
# that a worker takes (100,000 and 1,500,000), and bytes of its results (the platform keeps 20 MB).
MOST_BYTES = 8_000_000
MOST_VALUES = 80_000
MOST_IDS = 1_200_000
MOST_RESULTS = 12_000_000
# Bytes of a result, and of each token in it: its text and its id, or a candidate.
RESULT_BYTES, TOKEN_BYTES, CANDIDATE_BYTES = 400, 24, 100
# Of an answer whose parameters don't say.
TOKENS = 16
# Prompts in a job: few enough that several workers get some, enough to fill one.
FEWEST, MOST = 50, 500


@dataclass(frozen=True, slots=True)
class Part:
    """A job's items.

    Args:
        indexes: their places in the list.
        adapter: that all of them have.
        tries: jobs that have had them, and failed.
    """

    indexes: Sequence[int]
    adapter: str | None
    tries: int = 0

    def among(self, jobs: int) -> "list[Part]":
        """Share the items among some jobs."""
        size = math.ceil(len(self.indexes) / jobs) or 1
        starts = range(0, len(self.indexes), size)
        return [replace(self, indexes=self.indexes[start : start + size]) for start in starts]


@dataclass(slots=True)
class _Load:
    """What items add up to."""

    bytes: int = 0
    values: int = 0
    ids: int = 0
    results: int = 0
    indexes: list[int] = field(default_factory=list)

    def fits(self, other: "_Load", most: int) -> bool:
        return (
            len(self.indexes) < most
            and self.bytes + other.bytes <= MOST_BYTES
            and self.values + other.values <= MOST_VALUES
            and self.ids + other.ids <= MOST_IDS
            and self.results + other.results <= MOST_RESULTS
        )

    def add(self, other: "_Load") -> None:
        self.bytes += other.bytes
        self.values += other.values
        self.ids += other.ids
        self.results += other.results
        self.indexes += other.indexes


def parts_of(items: Sequence[Item], jobs: int) -> list[Part]:
    """Share items among jobs, in their order.

    Args:
        items: all of them.
        jobs: how many run at once.

    Raises:
        TypeError: an item can't be sent.
    """
    most = min(MOST, max(FEWEST, math.ceil(len(items) / jobs)))
    sizes = {id(item.params): len(encoded(item.params, "sampling_params")) for item in items}
    found: list[Part] = []
    for adapter in dict.fromkeys(item.adapter for item in items):
        loads = (
            _load(item, index, sizes[id(item.params)])
            for index, item in enumerate(items)
            if item.adapter == adapter
        )
        found += [Part(indexes, adapter) for indexes in _packed(loads, most)]
    return found


def _packed(loads: "Iterable[_Load]", most: int) -> Iterator[list[int]]:
    packed = _Load()
    for load in loads:
        if not packed.fits(load, most) and packed.indexes:
            yield packed.indexes
            packed = _Load()
        packed.add(load)
    if packed.indexes:
        yield packed.indexes


def _load(item: Item, index: int, params_bytes: int) -> _Load:
    ids = item.token_ids
    size = len(encoded(item.asked, f"prompt {index}"))
    return _Load(
        bytes=size + params_bytes + 2,
        values=2 + _values(item.params) + (0 if ids else _values(item.asked)),
        ids=len(ids or ()),
        results=_result_bytes(item.params, size),
        indexes=[index],
    )


def _values(value: Any) -> int:
    """Count the values in a value."""
    if isinstance(value, dict):
        return 1 + sum(map(_values, value.values()))
    return 1 + sum(map(_values, value)) if isinstance(value, list | tuple) else 1


def _result_bytes(params: dict[str, Any], prompt_bytes: int) -> int:
    """Return about how many bytes a result has at most. Wrong values are the worker's to refuse."""

    def number(name: str, otherwise: int) -> int:
        value = params.get(name)
        return value if isinstance(value, int) and value >= 0 else otherwise

    candidates = number("logprobs", 0 if params.get("return_token_log_probs") else -2)
    each = TOKEN_BYTES + (2 + candidates) * CANDIDATE_BYTES
    whole = RESULT_BYTES + number("n", 1) * number("max_tokens", TOKENS) * each
    # A token of a prompt has three characters or more, most of the time.
    of_prompt = (2 + number("prompt_logprobs", -2)) * CANDIDATE_BYTES
    return whole + prompt_bytes * of_prompt // 3
