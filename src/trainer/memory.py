"""Chooses how many rows are computed at once, so that they fit into the memory."""

from dataclasses import dataclass

import torch
from accelerate.utils.memory import should_reduce_batch_size

from trainer.batches import largest_divisor
from worker.estimates import OPTIMIZER, SHARES, ModelSizes
from worker.memory import free_memory


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


def free_bytes(device: str) -> int:
    """Return the bytes that are free where the model is computed."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory()


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
    return free_bytes(device) * SHARES[device] - OPTIMIZER * trained
