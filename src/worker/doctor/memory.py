"""How much memory a model takes, and how long a text fits: arithmetic, no measurement."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from worker.doctor.shape import Attention, Config, text_config

GIB = 2**30

# Bytes of an element, by the safetensors' names of the types; of those not here: one.
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4}
_BYTES |= {"I16": 2, "U16": 2, "C64": 8}
# The types that a model is loaded from into the type that it computes in.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_DTYPES = {"float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}

# What vLLM needs of a GPU beside weights and cache, roughly: the CUDA context, the activations of
# its largest batch, and the CUDA graphs that it captures unless ENFORCE_EAGER forbids it.
EAGER_RESERVE = int(1.25 * GIB)
GRAPHS_RESERVE = int(0.75 * GIB)

# An estimate is certain to be too much from this share of the limit on, and to fit up to the other.
TOO_MUCH = 1.1
FITS = 0.97

# vLLM hands the cache out in blocks of this many tokens, or more.
BLOCK = 16
# Of a card's nominal memory, in GiB for GB: what the driver offers of it, at least.
_OFFERED = 0.93
CARDS_GB = (16, 24, 32, 48, 80, 96, 141, 180)


@dataclass(frozen=True)
class Range:
    """Bytes: at least ``low``; at most ``high``, if that is known."""

    low: float
    high: float | None

    @property
    def exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True)
class Split:
    """How a model is divided: over the GPUs of a layer, and over groups of layers."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True)
class Demand:
    """What one GPU must hold: weights, a reserve, and one text of full length.

    ``offloaded`` bytes of the weights stay in the machine's own memory.
    """

    weights: Range
    token: Range
    reserve: int = 0
    offloaded: int = 0

    def total(self, context: int) -> Range:
        """Add it all up for a text of this length."""
        fixed = self.reserve - self.offloaded
        low = max(self.weights.low + fixed, 0) + self.token.low * context
        if self.weights.high is None or self.token.high is None:
            return Range(low, None)
        return Range(low, max(self.weights.high + fixed, 0) + self.token.high * context)

    def longest(self, budget: float) -> int | None:
        """Return the longest text that fits for certain; None, if nobody knows."""
        fixed = self.total(0).high
        if fixed is None or not self.token.high:
            return None
        blocks = int((budget * FITS - fixed) // (self.token.high * BLOCK))
        return max(0, blocks * BLOCK)


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element in what a model computes in, as vLLM resolves DTYPE."""
    # With "auto", too, a checkpoint in float32 is loaded in half its size.
    return _DTYPES.get(dtype, 2)


def stored_bytes(config: Config) -> int:
    """Return the bytes of an element in the type that a configuration names."""
    named = (each.get(key) for each in (config, text_config(config)) for key in _DTYPE_KEYS)
    dtype = next((str(name).removeprefix("torch.") for name in named if name), "float32")
    return _DTYPES.get(dtype, 2)


_DTYPE_KEYS = ("dtype", "torch_dtype")


def weights(
    size: int, tensors: Mapping[str, int] | None, config: Config, dtype: str, quantization: str
) -> Range:
    """Estimate the bytes of a model's weights, loaded.

    Args:
        size: of their files.
        tensors: elements by type, if known.
        config: the model's.
        dtype: vLLM's option.
        quantization: what the weights are to be quantised to while they are loaded; else nothing.
    """
    each = dtype_bytes(dtype)
    if tensors is not None:
        floats = sum(count for name, count in tensors.items() if name in _FLOATS)
        rest = sum(
            count * _BYTES.get(name, 1) for name, count in tensors.items() if name not in _FLOATS
        )
    elif quantised(config):
        floats, rest = 0, size
    else:
        floats, rest = size // stored_bytes(config), 0
    loaded = floats * each + rest
    if not quantization:
        return Range(loaded, loaded)
    # Not everything is quantised, and nothing to less than four bits.
    least = 1.0 if "8" in quantization else 0.5
    return Range(min(loaded, floats * least + rest), loaded)


def quantised(config: Config) -> str:
    """Return the method by which a checkpoint is quantised; nothing, if it is not."""
    for each in (config, text_config(config)):
        for key in ("quantization_config", "compression_config"):
            if isinstance(found := each.get(key), Mapping):
                return str(found.get("quant_method") or "unknown").replace("_tensors", "-tensors")
    return ""


def token(attention: Attention, split: Split, each: int, cache_dtype: str, config: Config) -> Range:
    """Estimate the bytes of one token in the KV cache of one GPU.

    Args:
        attention: the model's.
        split: over how many GPUs.
        each: bytes of an element that the model computes in.
        cache_dtype: vLLM's option ``kv_cache_dtype``.
        config: the model's.
    """
    size, known = _cache_bytes(cache_dtype, each, config)
    if attention.latent:
        of_layer = attention.latent * size
    else:
        heads = max(1, attention.kv_heads // split.tensor)
        of_layer = 2 * heads * attention.head_size * size
    high = math.ceil(attention.layers / split.pipeline) * of_layer
    low = attention.full // split.pipeline * of_layer
    if attention.full == attention.layers and attention.bounded:
        low = high
    return Range(low, high if attention.bounded and known else None)


def _cache_bytes(cache_dtype: str, each: int, config: Config) -> tuple[float, bool]:
    """Return the bytes of an element in the cache, at least, and whether that is all."""
    if cache_dtype == "auto":
        quantization = config.get("quantization_config")
        own = isinstance(quantization, Mapping) and (
            quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
        )
        return (1, True) if own else (each, True)
    if cache_dtype in _DTYPES:
        return _DTYPES[cache_dtype], True
    # Smaller ones have scales beside them.
    return (1, True) if cache_dtype.startswith("fp8") else (0.25, False)


def card_for(needed: float, share: float) -> int | None:
    """Return the smallest card, in GB, of which a share holds that many bytes."""
    fitting = (card for card in CARDS_GB if card * _OFFERED * GIB * share >= needed)
    return next(fitting, None)


def written(size: float) -> str:
    """Write a number of bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"
