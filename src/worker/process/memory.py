"""Memory: the limit of this process and its free memory, and estimates of what models need.

No library calculates the estimates, so each number has its source. The memory for tokens in an
engine's cache is not estimated, because vLLM calculates it (``engine/cache_plan.py``). The sizes of
weights are read from the headers of their files.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

# Folder of this process's control group, which contains its limits.
CGROUP = Path("/sys/fs/cgroup")
# Maximum share of the memory for weights in the page cache; the engine needs memory, too.
PAGE_CACHE_SHARE = 0.8
# File names in versions 2 and 1 of control groups: the memory limit, the memory usage, the
# statistics, and the field of the statistics with the page cache that the kernel can reclaim.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)

# Files with the number of processes that the kernel killed because the group's memory was full.
_OOM_KILL_FILES = ("memory.events", "memory/memory.oom_control")


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the smaller of the container's limit and the physical memory, in bytes."""
    physical: int = psutil.virtual_memory().total
    return min([physical, *_container_limits(cgroup)])


def page_cache_capacity(cgroup: Path = CGROUP) -> int:
    """Return the bytes that the page cache can use: free memory, at most ``memory_limit``."""
    free: int = psutil.virtual_memory().available
    return min(free, memory_limit(cgroup))


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return how many more bytes this process can use, limited by the machine and the container."""
    free: list[int] = [psutil.virtual_memory().available]
    limits = list(_container_limits(cgroup))
    for _, used, statistics, cache in _CGROUP_FILES:
        if limits and (cgroup / used).is_file():
            # Some sandboxes have no statistics.
            counts = cgroup / statistics
            lines = counts.read_text().splitlines() if counts.is_file() else []
            reclaimable = dict(line.split() for line in lines).get(cache, 0)
            free.append(limits[0] - int((cgroup / used).read_text()) + int(reclaimable))
    return max(0, min(free))


def count_oom_kills(cgroup: Path = CGROUP) -> int | None:
    """Return how many of the container's processes the OOM killer has killed; None if uncounted."""
    for name in _OOM_KILL_FILES:
        if (file := cgroup / name).is_file():
            counts = dict(line.split() for line in file.read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def _container_limits(cgroup: Path) -> Iterator[int]:
    for name, *_ in _CGROUP_FILES:
        file = cgroup / name
        # Without a limit, version 2 writes "max", and version 1 a number larger than any memory.
        if file.is_file() and (limit := file.read_text().strip()).isdecimal():
            yield int(limit)


# Estimates

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

        With ``recompute``, only the input of each layer is stored and the rest is recomputed.
        """
        layer = _HIDDEN_WIDTHS * self.hidden_size + _FEED_FORWARD_WIDTHS * self.feed_forward_size
        layers = self.num_hidden_layers
        stored_numbers = layers * self.hidden_size + layer if recompute else layers * layer
        return FLOAT32_BYTES * stored_numbers + _VOCABULARY_ENTRY_BYTES * self.vocab_size

    def adapter_parameter_count(self, rank: int) -> int:
        """Return the approximate number of parameters of an adapter on all projections."""
        attention, mlp = 4 * 2 * self.hidden_size, 3 * (self.hidden_size + self.feed_forward_size)
        return self.num_hidden_layers * rank * (attention + mlp)
