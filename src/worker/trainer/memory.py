"""Chooses how many rows are computed at once, so that they fit into the memory."""

from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils.memory import should_reduce_batch_size

from worker.memory import free_memory
from worker.trainer.batches import largest_divisor

# Bytes of a number that is kept for the way back. Where weights have 16 bits, some have half of
# that; normalisations and adapters compute in 32 bits all the same.
_NUMBER = 4
# Numbers that a layer keeps of each token, in its widths; counted in a Llama with adapters on all
# projections, whose dropout keeps copies.
_HIDDEN, _INNER = 20, 5
# Bytes of each token for each word of the vocabulary: logits, their logarithms, both gradients.
_WORD = 16
# The parts of what is free that are taken: on a CPU others live there, too.
_PARTS = {"cuda": 0.9, "cpu": 0.5}


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


def fit(sizes: "Sizes", longest: int, batch_size: int, free: float) -> Fit:
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
    return free_bytes(device) * _PARTS[device] - 3 * _NUMBER * trained


@dataclass(frozen=True)
class Sizes:
    """What a model's memory for a token depends on."""

    layers: int
    hidden: int
    inner: int
    words: int

    @classmethod
    def of(cls, config: Any) -> "Sizes":
        """Read them from a model's configuration, in transformers' names."""
        text = config.get_text_config()
        hidden = text.hidden_size
        inner = getattr(text, "intermediate_size", None) or 4 * hidden
        return cls(text.num_hidden_layers, hidden, inner, text.vocab_size)

    def token_bytes(self, *, recompute: bool) -> int:
        """Return the bytes that each token of a row takes."""
        layer = _HIDDEN * self.hidden + _INNER * self.inner
        kept = self.layers * self.hidden + layer if recompute else self.layers * layer
        return _NUMBER * kept + _WORD * self.words
