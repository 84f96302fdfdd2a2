"""Turns rows of tokens into tensors, and chooses the rows per step and per forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate.utils.memory import should_reduce_batch_size

from trainer.tokens import TokenRow
from worker.process.memory import MEMORY_SHARES, OPTIMIZER_BYTES, ModelSizes, free_memory_bytes

# Label of a token that is not learned: the loss ignores it.
IGNORED_LABEL = -100
# Default number of rows per step. Large files: this share of the rows, as in OpenAI's service, at
# most ``_MAX_BATCH``. Small files: at most ``_SMALL_FILE_BATCH``, and fewer if an epoch would have
# less than ``_MIN_EPOCH_STEPS`` steps.
_BATCH_SHARE = 0.002
_MIN_EPOCH_STEPS = 25
_SMALL_FILE_BATCH, _MAX_BATCH = 8, 64


def default_batch_size(rows: int) -> int:
    """Return the number of rows per step, a power of 2, for a training that doesn't set it."""
    small = min(_SMALL_FILE_BATCH, rows // _MIN_EPOCH_STEPS)
    size = min(_MAX_BATCH, max(small, int(rows * _BATCH_SHARE), 1))
    return 1 << (size.bit_length() - 1)


def largest_divisor(number: int, limit: float) -> int:
    """Return the largest divisor of a number that is not above the limit; at least 1."""
    return max((n for n in range(1, number + 1) if number % n == 0 and n <= limit), default=1)


def collate(rows: Sequence[TokenRow]) -> dict[str, torch.Tensor]:
    """Return the rows as tensors, padded to the length of the longest row."""
    shape = len(rows), max(map(len, rows))
    # Any padding token will do: the mask hides it, and it is not learned.
    ids = np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED_LABEL, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row["id"]
        mask[number, : len(row)] = 1
        labels[number, : len(row)] = np.where(row["learned"], row["id"], IGNORED_LABEL)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }


@dataclass(frozen=True)
class StepPlan:
    """How a step is computed."""

    rows: int  # per forward pass, a divisor of the rows per step
    recompute: bool = False  # the backward pass computes activations again, to save memory

    def smaller_plan(self, batch_size: int) -> "StepPlan | None":
        """Return the next plan that needs less memory; None if this is the smallest."""
        if self.rows > 1:
            return StepPlan(largest_divisor(batch_size, self.rows / 2), self.recompute)
        return None if self.recompute else StepPlan(1, recompute=True)


def is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    return isinstance(error, MemoryError) or bool(should_reduce_batch_size(error))


def choose_step_plan(sizes: ModelSizes, longest: int, batch_size: int, free: float) -> StepPlan:
    """Return the fastest plan that fits into memory by an estimate, or the smallest if none fits.

    ``longest`` are the tokens of the longest row, and ``free`` the bytes for rows.
    """
    for recompute in (False, True):
        rows = free / (longest * sizes.token_bytes(recompute=recompute))
        if rows >= 1:
            return StepPlan(largest_divisor(batch_size, rows), recompute)
    # The smallest plan may still work: the sizes are estimates.
    return StepPlan(1, recompute=True)


def free_bytes_for_rows(device: str, trained_parameters: int) -> float:
    """Return the bytes that rows may use: a share of the free memory, minus the optimiser's needs.

    The optimiser needs space for a gradient and two averages per trained parameter.
    """
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory_bytes()
    return free * MEMORY_SHARES[device] - OPTIMIZER_BYTES * trained_parameters
