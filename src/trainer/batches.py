"""Puts rows of tokens together: how many make a step, how many are computed at once, as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate.utils.memory import should_reduce_batch_size

from trainer.prepare import ROWS
from trainer.texts import TOKEN, Row
from worker.process.estimates import OPTIMIZER, SHARES, ModelSizes
from worker.process.memory import free_memory

# The label of a token that is not learned.
IGNORED = -100
# The part of the rows that a step has where they are many, as OpenAI's service does it, and the
# bounds: a small set has enough steps, a large one no steps that are larger than is of use.
_PART = 0.002
_STEPS = 25
_FEW, _MANY = 8, 64


class Packed(Sequence[Row]):
    """Some of the rows in a directory, in constant memory: the file is mapped.

    Args:
        directory: that ``prepare.Writer`` has filled.
        name: of the rows, as ``Writer.choose`` has named them.
    """

    def __init__(self, directory: Path, name: str) -> None:
        # For each row where its tokens begin and end.
        self._bounds = np.load(directory / f"{name}.npy")
        self._tokens = np.memmap(directory / ROWS, TOKEN, "r")

    def __len__(self) -> int:
        return len(self._bounds)

    def __getitem__(self, index: int) -> Row:  # type: ignore[override]  # no slices are needed
        begin, end = self._bounds[index]
        return np.asarray(self._tokens[begin:end])


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
    shape = len(rows), max(map(len, rows))
    # Which token fills up is of no account: the mask hides it, and it is not learned.
    ids = np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row["id"]
        mask[number, : len(row)] = 1
        labels[number, : len(row)] = np.where(row["learned"], row["id"], IGNORED)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }


@dataclass(frozen=True)
class Fit:
    """How a step is computed.

    Args:
        rows: at once; a step's rows are a multiple.
        recompute: keep what goes into each layer only, and compute the rest again.
    """

    rows: int
    recompute: bool = False

    def smaller(self, batch_size: int) -> "Fit | None":
        """Return the next one that takes less memory; None if there is none."""
        if self.rows > 1:
            return Fit(largest_divisor(batch_size, self.rows / 2), self.recompute)
        return None if self.recompute else Fit(1, recompute=True)


def lacking(error: RuntimeError | MemoryError) -> bool:
    """Return whether it is the memory that does not suffice."""
    return isinstance(error, MemoryError) or bool(should_reduce_batch_size(error))


def fit(sizes: ModelSizes, longest: int, batch_size: int, free: float) -> Fit:
    """Choose.

    Args:
        sizes: the model's.
        longest: the tokens of the longest row.
        batch_size: the rows of a step.
        free: bytes for it.
    """
    for recompute in (False, True):
        rows = free / (longest * sizes.token_bytes(recompute=recompute))
        if rows >= 1:
            return Fit(largest_divisor(batch_size, rows), recompute)
    # It may go well: these are estimates.
    return Fit(1, recompute=True)


def budget(device: str, trained: int) -> float:
    """Return the bytes for rows: gradients and the optimiser's two averages take theirs."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory()
    return free * SHARES[device] - OPTIMIZER * trained
