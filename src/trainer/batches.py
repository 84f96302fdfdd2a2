"""Puts rows together: how many make a step, and how a few of them become tensors."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

# The label of a token that is not learned.
IGNORED = -100
# The part of the rows that a step has where they are many, as OpenAI's service does it, and the
# bounds: a small set has enough steps, a large one no steps that are larger than is of use.
_PART = 0.002
_STEPS = 25
_FEW, _MANY = 8, 64


class Row(Protocol):
    """A row's tokens, and which of them are learned."""

    @property
    def ids(self) -> np.ndarray: ...
    @property
    def learned(self) -> np.ndarray: ...


def batch_size(rows: int) -> int:
    """Return of how many rows a step is to learn, a power of 2, where nobody has said it."""
    few = min(_FEW, rows // _STEPS)
    wanted = min(_MANY, max(few, int(rows * _PART), 1))
    return 1 << (wanted.bit_length() - 1)


def largest_divisor(number: int, limit: float) -> int:
    """Return the largest divisor of a number that is not above a limit; at least 1."""
    return max((n for n in range(1, number + 1) if number % n == 0 and n <= limit), default=1)


def collate(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Return rows as tensors of one length, in tokens that of the longest row."""
    shape = len(rows), max(len(row.ids) for row in rows)
    # Which token fills up is of no account: the mask hides it, and it is not learned.
    ids = np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    for number, row in enumerate(rows):
        length = len(row.ids)
        ids[number, :length] = row.ids
        mask[number, :length] = 1
        labels[number, :length] = np.where(row.learned, row.ids, IGNORED)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }
