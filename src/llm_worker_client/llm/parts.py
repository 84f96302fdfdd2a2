"""Many prompts as jobs of a size that the platform and the worker take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import gt
from typing import Any

from llm_worker_client.llm.prompts import Item, encoded

# Of a job: bytes of what it holds (above 10 MB it could not be cancelled), values and token ids
# that a worker takes (100,000 and 1,500,000), and bytes of its results (the platform keeps 20 MB).
MOST_BYTES = 8_000_000
MOST = (MOST_BYTES, 80_000, 1_200_000, 12_000_000)
# Bytes of a result, and of each token in it: its text and its id, or a candidate.
RESULT_BYTES, TOKEN_BYTES, CANDIDATE_BYTES = 400, 24, 100
# Of an answer whose parameters don't say.
TOKENS = 16
# Prompts in a job: few enough that several workers get some, enough to fill one.
FEWEST_PROMPTS, MOST_PROMPTS = 50, 500


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


def parts_of(items: Sequence[Item], jobs: int) -> list[Part]:
    """Share items among jobs, in their order.

    Args:
        items: all of them.
        jobs: how many run at once.

    Raises:
        TypeError: an item can't be sent.
    """
    most = min(MOST_PROMPTS, max(FEWEST_PROMPTS, math.ceil(len(items) / jobs)))
    sizes = {id(item.params): len(encoded(item.params, "sampling_params")) for item in items}
    found: list[Part] = []
    for adapter in dict.fromkeys(item.adapter for item in items):
        indexes: list[int] = []
        load = [0] * len(MOST)
        for index, item in enumerate(items):
            if item.adapter != adapter:
                continue
            more = _load(item, index, sizes[id(item.params)])
            together = [*map(sum, zip(load, more, strict=True))]
            if indexes and (len(indexes) == most or any(map(gt, together, MOST))):
                found.append(Part(indexes, adapter))
                indexes, together = [], more
            indexes.append(index)
            load = together
        found.append(Part(indexes, adapter))
    return found


def _load(item: Item, index: int, params_bytes: int) -> list[int]:
    """Return what an item adds to a job, in the order of ``MOST``."""
    ids = item.token_ids
    size = len(encoded(item.asked, f"prompt {index}"))
    values = 2 + _values(item.params) + (0 if ids else _values(item.asked))
    return [size + params_bytes + 2, values, len(ids or ()), _result_bytes(item.params, size)]


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
