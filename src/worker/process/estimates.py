"""Estimates of memory in bytes that no library calculates, with the source of each number.

The memory for tokens in an engine's cache is not estimated here because vLLM calculates it
(``engine/cache_plan.py``). The sizes of weights are read from the headers of their files.
"""

from pydantic import BaseModel, ConfigDict

GIB = 2**30

# GPU memory that an engine needs in addition to weights and cache; vLLM measures it at startup. The
# first is for the CUDA context with its libraries and for the activations of the largest batch, the
# second for the CUDA graphs, which vLLM captures unless ENFORCE_EAGER is set. Measured on an H100
# 80GB with vLLM 0.32 and a model of 443 M parameters: 0.42 GiB for context and libraries, 0.66 for
# activations, 0.42 for CUDA graphs. The additional 0.5 GiB are for larger models, and for the
# difference between the total memory in NVML (79.6 GiB there) and in CUDA (79.18). vLLM takes its
# share of CUDA's total. The doctor creates no CUDA context and uses NVML's total.
EAGER_RESERVE = int(1.25 * GIB)
CUDA_GRAPHS_RESERVE = int(0.75 * GIB)
# A sum of these estimates may be too large by this factor. Only a sum that exceeds the memory by a
# larger factor certainly doesn't fit.
ERROR_MARGIN = 1.1
# Share of a machine's RAM that weights and caches may use. This is a guess: Python and torch need
# the rest.
USABLE_MEMORY_SHARE = 0.97

# Memory of a training process without a model. On a CPU, Python uses 0.36 GiB after importing torch
# 2.13 and transformers 5.19. On a GPU, the CUDA context is added, which takes 0.42 GiB in an engine
# (see ``EAGER_RESERVE``); the rest is a guess.
PROCESS_BYTES = {"cpu": GIB // 2, "cuda": GIB}
# Bytes of a weight in the type in which a training loads it (``trainer/loading.py``).
WEIGHT_BYTES = {"cpu": 4, "cuda": 2}
# Bytes of a float32 number, the assumed type of all computations. With 16-bit weights some numbers
# need half of that, but normalisations and adapters still compute in 32 bits.
FLOAT32_BYTES = 4
# A training with AdamW stores a gradient and two averages for each trained parameter.
OPTIMIZER_BYTES = 3 * FLOAT32_BYTES
# Shares of the free memory that a training may use. On a CPU, other processes share the memory.
MEMORY_SHARES = {"cuda": 0.9, "cpu": 0.5}
# Numbers per token that a layer stores for the backward pass, in multiples of the model's hidden
# size and of its feed-forward size. Counted in a Llama model with adapters on all projections,
# whose dropout stores copies. A test compares the estimate with the numbers that torch stores.
_HIDDEN_WIDTHS, _FEED_FORWARD_WIDTHS = 20, 5
# Bytes per token and vocabulary entry: logits, their logarithms and both gradients.
_VOCABULARY_ENTRY_BYTES = 4 * FLOAT32_BYTES


class ModelSizes(BaseModel):
    """Sizes of a model that determine a training's memory, named as in its configuration."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int | None = None

    @property
    def feed_forward_size(self) -> int:
        return self.intermediate_size or 4 * self.hidden_size

    def token_bytes(self, *, recompute: bool) -> int:
        """Return the memory in bytes that a training needs for one token of a row.

        Args:
            recompute: Whether only the input of each layer is stored and the rest is recomputed.
        """
        layer = _HIDDEN_WIDTHS * self.hidden_size + _FEED_FORWARD_WIDTHS * self.feed_forward_size
        layers = self.num_hidden_layers
        stored_numbers = layers * self.hidden_size + layer if recompute else layers * layer
        return FLOAT32_BYTES * stored_numbers + _VOCABULARY_ENTRY_BYTES * self.vocab_size

    def adapter_parameter_count(self, rank: int) -> int:
        """Return the approximate number of parameters of an adapter on all projections."""
        attention, mlp = 4 * 2 * self.hidden_size, 3 * (self.hidden_size + self.feed_forward_size)
        return self.num_hidden_layers * rank * (attention + mlp)
