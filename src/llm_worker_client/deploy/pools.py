"""The platform's pools of GPUs, and which of them hold a model by the size in its name."""

import json
import re
from importlib import resources

_FILE = resources.files("llm_worker_client.deploy") / "pools.json"
# GB of each GPU of a pool.
POOLS: dict[str, int] = json.loads(_FILE.read_text(encoding="utf-8"))

_PARAMETERS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)
# GB for a billion parameters in 16 bits, or quantized to 4.
_GB, _GB_QUANTIZED = 2.0, 0.75
# How much more a GPU needs at least, for the KV cache.
_ON_GPU = 1.2
_QUANTIZED = ("awq", "gptq")


def needed_gb(model: str, quantization: str = "", gpus: int = 1) -> float | None:
    """Return the GB that a model needs on each GPU; None if its name doesn't tell its size.

    Args:
        model: its name, such as org/model-7b.
        quantization: how its weights are quantized, if that is known.
        gpus: that it is spread over.
    """
    weights = weights_gb(model, quantization)
    return None if weights is None else weights * _ON_GPU / gpus


def weights_gb(model: str, quantization: str = "") -> float | None:
    """Return the GB of a model's weights; None if its name doesn't tell its size."""
    if (size := _PARAMETERS.search(model)) is None:
        return None
    billions = float(size[1]) / (1000 if size[2] in "mM" else 1)
    return billions * (_GB_QUANTIZED if quantization.lower().startswith(_QUANTIZED) else _GB)


def pools_of(gb: float) -> list[str]:
    """Return the pools of the smallest GPUs that hold so much; none if there are no such GPUs."""
    fitting = min((size for size in POOLS.values() if size >= gb), default=None)
    return [name for name, size in POOLS.items() if size == fitting]


def all_pools() -> str:
    """List all pools by their memory."""
    sizes = sorted({*POOLS.values()})
    groups = {gb: " ".join(name for name, size in POOLS.items() if size == gb) for gb in sizes}
    return ", ".join(f"{gb} GB: {names}" for gb, names in groups.items())
