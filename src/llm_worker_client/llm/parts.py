"""Splits many items into parts that are small enough for a job."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import gt
from typing import Any

from llm_worker_client.llm.prompts import Item, encode_json

MAX_BYTES = 8_000_000
# Limits of a job: bytes of the items (jobs above 10 MB can't be cancelled), JSON values and token
# ids (a worker accepts 100,000 and 1,500,000), bytes of the results (the platform stores 20 MB).
JOB_LIMITS = (MAX_BYTES, 80_000, 1_200_000, 12_000_000)
# Estimated bytes of a result, of each token in it (text and id), and of each candidate token.
RESULT_BYTES, TOKEN_BYTES, CANDIDATE_BYTES = 400, 24, 100
# Tokens of an output if the parameters contain no limit.
DEFAULT_TOKENS = 16
# Bounds for the maximum number of prompts in a job: several workers get jobs, but no tiny ones.
MIN_PROMPTS, MAX_PROMPTS = 50, 500


@dataclass(frozen=True, slots=True)
class ListPart:
    """The items of one job.

    Args:
        indexes: Indexes of the items in the call's list.
        adapter: Served name of the adapter of all items; None if they use the call's model.
        failures: Number of failed jobs with these items.
    """

    indexes: Sequence[int]
    adapter: str | None
    failures: int = 0


def split_items(items: Sequence[Item], jobs: int) -> list[ListPart]:
    """Split items into parts whose items have the same adapter and are in their original order.

    Args:
        items: All items of the call.
        jobs: Maximum number of concurrent jobs.

    Raises:
        TypeError: If an item can't be encoded.
    """
    max_prompts = min(MAX_PROMPTS, max(MIN_PROMPTS, math.ceil(len(items) / jobs)))
    sizes = {id(item.params): len(encode_json(item.params, "sampling_params")) for item in items}
    parts: list[ListPart] = []
    for adapter in dict.fromkeys(item.adapter for item in items):
        indexes: list[int] = []
        part_load = [0] * len(JOB_LIMITS)
        for index, item in enumerate(items):
            if item.adapter != adapter:
                continue
            item_load = _estimate_use_of_limits(item, index, sizes[id(item.params)])
            new_load = [*map(sum, zip(part_load, item_load, strict=True))]
            if indexes and (len(indexes) == max_prompts or any(map(gt, new_load, JOB_LIMITS))):
                parts.append(ListPart(indexes, adapter))
                indexes, new_load = [], item_load
            indexes.append(index)
            part_load = new_load
        parts.append(ListPart(indexes, adapter))
    return parts


def _estimate_use_of_limits(item: Item, index: int, params_bytes: int) -> list[int]:
    """Estimate how much of each limit in ``JOB_LIMITS`` an item uses."""
    ids = item.token_ids
    size = len(encode_json(item.content, f"prompt {index}"))
    values = 2 + _count_json_values(item.params) + (0 if ids else _count_json_values(item.content))
    return [
        size + params_bytes + 2,
        values,
        len(ids or ()),
        _estimate_result_bytes(item.params, size),
    ]


def _count_json_values(value: Any) -> int:
    """Return the number of values in a JSON value, including itself."""
    if isinstance(value, dict):
        return 1 + sum(map(_count_json_values, value.values()))
    return 1 + sum(map(_count_json_values, value)) if isinstance(value, list | tuple) else 1


def _estimate_result_bytes(params: dict[str, Any], prompt_bytes: int) -> int:
    """Estimate the maximum bytes of an item's result."""

    def count_or_default(name: str, default: int) -> int:
        # A wrong value needs no estimate because the worker rejects it.
        value = params.get(name)
        return value if isinstance(value, int) and value >= 0 else default

    candidates = count_or_default("logprobs", 0 if params.get("return_token_log_probs") else -2)
    choice_token_bytes = TOKEN_BYTES + (2 + candidates) * CANDIDATE_BYTES
    tokens = count_or_default("n", 1) * count_or_default("max_tokens", DEFAULT_TOKENS)
    output_bytes = RESULT_BYTES + tokens * choice_token_bytes
    # Most prompt tokens have at least three characters.
    prompt_token_bytes = (2 + count_or_default("prompt_logprobs", -2)) * CANDIDATE_BYTES
    return output_bytes + prompt_bytes * prompt_token_bytes // 3
