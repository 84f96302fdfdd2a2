"""How much memory a model takes, and how long a text fits: arithmetic, no measurement."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.doctor.gpus.pools import POOLS
from worker.engine.model_config import ModelShape

Config = Mapping[str, Any]

GIB = 2**30

# Bytes of an element, by the safetensors' name of its type; one, where it is not here.
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4}
_BYTES |= {"I16": 2, "U16": 2, "C64": 8}
# Types that loading converts to the type that the model computes in.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_DTYPES = {"float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}

# What vLLM needs of a GPU besides weights and cache, roughly: the CUDA context, the activations of
# its largest batch, and the CUDA graphs that it captures unless ENFORCE_EAGER is set.
EAGER_RESERVE = int(1.25 * GIB)
GRAPHS_RESERVE = int(0.75 * GIB)

# Shares of a limit: an estimate above the first is too much for certain, one below the second fits.
TOO_MUCH = 1.1
FITS = 0.97

# Tokens of one of the cache's blocks, at least.
BLOCK = 16


@dataclass(frozen=True)
class Range:
    """An estimate in bytes: at least ``low``, at most ``high``; None if no limit is known."""

    low: float
    high: float | None

    @property
    def exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True)
class Split:
    """How a model is divided: each layer among ``tensor`` GPUs, the layers into ``pipeline``."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True)
class Demand:
    """The bytes that one GPU must hold: weights, a reserve, and a cache for one text.

    Attributes:
        weights: all of them.
        token: a token in the cache.
        reserve: for everything else.
        offloaded: weights that stay in the machine's own memory.
    """

    weights: Range
    token: Range
    reserve: int = 0
    offloaded: int = 0

    def total(self, context: int) -> Range:
        """Return the sum for a text of ``context`` tokens."""
        fixed = self.reserve - self.offloaded
        low = max(self.weights.low + fixed, 0) + self.token.low * context
        if self.weights.high is None or self.token.high is None:
            return Range(low, None)
        return Range(low, max(self.weights.high + fixed, 0) + self.token.high * context)

    def longest(self, budget: float) -> int | None:
        """Return the tokens of the longest text that fits for certain; None if not known."""
        fixed = self.total(0).high
        if fixed is None or not self.token.high:
            return None
        blocks = int((budget * FITS - fixed) // (self.token.high * BLOCK))
        return max(0, blocks * BLOCK)


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element in the type that DTYPE names."""
    # With "auto", a checkpoint in float32 is loaded in half its size, too.
    return _DTYPES.get(dtype, 2)


def stored_bytes(config: Config) -> int:
    """Return the bytes of an element in the type that a configuration names."""
    names = (part.get(key) for part in _parts(config) for key in ("dtype", "torch_dtype"))
    dtype = next((str(name).removeprefix("torch.") for name in names if name), "float32")
    return _DTYPES.get(dtype, 2)


def _parts(config: Config) -> list[Config]:
    """Return a configuration and those in it: a language model's, next to a vision model's."""
    return [config, *(part for part in config.values() if isinstance(part, Mapping))]


def weights(
    size: int, tensors: Mapping[str, int] | None, config: Config, element_bytes: int, target: str
) -> Range:
    """Estimate the bytes of a model's weights, loaded.

    Args:
        size: bytes of their files.
        tensors: elements by type, if known.
        config: the model's.
        element_bytes: size of an element in the type that the model computes in.
        target: the method that the weights are quantised by while they are loaded, or nothing.
    """
    if tensors is not None:
        floats = sum(count for name, count in tensors.items() if name in _FLOATS)
        rest = sum(
            count * _BYTES.get(name, 1) for name, count in tensors.items() if name not in _FLOATS
        )
    elif quantization_method(config):
        floats, rest = 0, size
    else:
        floats, rest = size // stored_bytes(config), 0
    loaded = floats * element_bytes + rest
    if not target:
        return Range(loaded, loaded)
    # Not everything is quantised, and nothing to less than four bits.
    least = 1.0 if "8" in target else 0.5
    return Range(min(loaded, floats * least + rest), loaded)


def quantization_method(config: Config) -> str:
    """Return the method by which a checkpoint is quantised; nothing if it is not."""
    for part in _parts(config):
        for key in ("quantization_config", "compression_config"):
            if isinstance(found := part.get(key), Mapping):
                return str(found.get("quant_method") or "unknown").replace("_tensors", "-tensors")
    return ""


def token(shape: ModelShape, split: Split, cache_dtype: str, config: Config) -> Range:
    """Estimate the bytes of one token in the KV cache of one GPU.

    Args:
        shape: the model's.
        split: among how many GPUs.
        cache_dtype: vLLM's option ``kv_cache_dtype``.
        config: the model's.
    """
    size, known = _cache_bytes(cache_dtype, shape.element_bytes, config)
    # A latent state is whole on every GPU of its layer.
    states = 1 if shape.latent else 2 * max(1, shape.kv_heads // split.tensor)
    of_layer = states * shape.head_size * size
    high = math.ceil(shape.layers / split.pipeline) * of_layer
    low = shape.full_layers // split.pipeline * of_layer
    if shape.full_layers == shape.layers and shape.bounded:
        low = high
    return Range(low, high if shape.bounded and known else None)


def _cache_bytes(cache_dtype: str, element_bytes: int, config: Config) -> tuple[float, bool]:
    """Return the bytes of an element in the cache, at least, and whether that is all of it."""
    if cache_dtype == "auto":
        quantization = config.get("quantization_config")
        own = isinstance(quantization, Mapping) and (
            quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
        )
        return (1, True) if own else (element_bytes, True)
    if cache_dtype in _DTYPES:
        return _DTYPES[cache_dtype], True
    # Smaller types have scales in addition.
    return (1, True) if cache_dtype.startswith("fp8") else (0.25, False)


def card_for(needed: float, share: float) -> int | None:
    """Return the GB of the smallest card of which a share holds the bytes; None if none does."""
    offered: dict[int, float] = {}
    for pool in POOLS:
        least = min(kind.gib for kind in pool.types)
        offered[pool.gb] = min(least, offered.get(pool.gb, least))
    return next((card for card, gib in offered.items() if gib * GIB * share >= needed), None)


def readable_size(size: float) -> str:
    """Return a number of bytes in GiB, or in MiB if it is small."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"
