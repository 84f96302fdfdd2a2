"""Estimates of memory that no library calculates, in bytes, with the source of each figure.

What texts take in an engine's cache is not among them: vLLM calculates that itself
(``engine/cache_plan.py``), and how large weights are stands in the headers of their files.
"""

from pydantic import BaseModel, ConfigDict

GIB = 2**30

# What an engine takes of a GPU besides weights and cache, which vLLM measures in a start. The first
# is for the CUDA context with its libraries and for the activations of the largest batch, the
# second for the CUDA graphs, which vLLM captures unless ENFORCE_EAGER is set. Measured on an H100
# 80GB, vLLM 0.32, a model of 443 M parameters: 0.42 GiB context and libraries, 0.66 activations,
# 0.42 CUDA graphs. The 0.5 GiB on top are for larger models, and for what NVML counts of a GPU's
# memory beyond CUDA: there 79.6 GiB against 79.18. vLLM takes its share of CUDA's, the doctor,
# which creates no CUDA context, of NVML's.
EAGER_RESERVE = int(1.25 * GIB)
GRAPHS_RESERVE = int(0.75 * GIB)
# How far a sum with such estimates in it may be off: it is too much for certain only beyond this.
TOO_MUCH = 1.1
# The share of a machine's own memory that weights and caches may take. A guess: Python and torch
# need the rest.
FITS = 0.97

# A training's process without a model. On a CPU, Python has 0.36 GiB once torch 2.13 and
# transformers 5.19 are imported. On a GPU it has the CUDA context, which with vLLM's libraries took
# the 0.42 GiB above; the rest is a guess.
PROCESS = {"cpu": GIB // 2, "cuda": GIB}
# A weight in the type that a training loads it in (``trainer/loading.py``): float32, or 16 bits.
WEIGHT = {"cpu": 4, "cuda": 2}
# A number that is computed with, in float32. Where weights have 16 bits, some have half of that;
# normalisations and adapters compute in 32 bits all the same.
NUMBER = 4
# AdamW keeps a gradient and two averages of each number that it trains.
OPTIMIZER = 3 * NUMBER
# The shares of free memory that a training plans with: on a CPU others live there, too.
SHARES = {"cuda": 0.9, "cpu": 0.5}
# Numbers that a layer keeps of a token for the backward pass, in widths of the model and of its
# feed-forward part: counted in a Llama with adapters on all projections, whose dropout keeps
# copies. A test compares the estimate with what torch keeps.
_HIDDEN, _INNER = 20, 5
# Of a token for each word of the vocabulary: logits, their logarithms, both gradients.
_WORD = 4 * NUMBER


class ModelSizes(BaseModel):
    """What the memory of a training depends on, in the names of a model's configuration."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int | None = None

    @property
    def inner(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    def token_bytes(self, *, recompute: bool) -> int:
        """Return the bytes that a token of a row takes.

        Args:
            recompute: keep only what goes into each layer, and compute the rest again.
        """
        layer = _HIDDEN * self.hidden_size + _INNER * self.inner
        layers = self.num_hidden_layers
        kept = layers * self.hidden_size + layer if recompute else layers * layer
        return NUMBER * kept + _WORD * self.vocab_size

    def adapter_elements(self, rank: int) -> int:
        """Return about how many numbers an adapter on the usual layers has."""
        attention, mlp = 4 * 2 * self.hidden_size, 3 * (self.hidden_size + self.inner)
        return self.num_hidden_layers * rank * (attention + mlp)
