"""Which files of a model vLLM loads: its weights once, not in every format they are there in."""

import json
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"

# What vLLM looks for, in this order: the first pattern that finds something counts. Mistral's own
# format wins over Hugging Face's where a repository has both.
_PATTERNS = {
    "auto": ("consolidated*.safetensors", "*.safetensors", "*.bin", "*.pt"),
    "mistral": ("consolidated*.safetensors",),
    "safetensors": ("*.safetensors",),
    "fastsafetensors": ("*.safetensors",),
    "instanttensor": ("*.safetensors",),
    "runai_streamer": ("*.safetensors",),
    "pt": ("*.pt",),
    "npcache": ("*.bin",),
    "gguf": ("*.gguf",),
    "dummy": (),
}
_HUGGING_FACE = ("*.safetensors", "*.bin", "*.pt")

# Left by a training, and never loaded.
_TRAINING = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}

# Configurations, tokenizers, templates, and code of the model's own.
_OTHERS = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")


def weights(
    names: Collection[str], index: Collection[str] = (), load_format: str = "auto"
) -> list[str]:
    """Name the weights among a model's files; with those that only the index names.

    Args:
        names: of all files of the model, with their folders.
        index: files that ``model.safetensors.index.json`` names.
        load_format: vLLM's option.
    """
    roots = [name for name in names if "/" not in name and name not in _TRAINING]
    for pattern in _PATTERNS.get(load_format, _HUGGING_FACE):
        if found := [name for name in roots if fnmatch(name, pattern)]:
            indexed = index and pattern == "*.safetensors"
            return sorted(set(index) if indexed else found)
    return []


def others(names: Collection[str]) -> list[str]:
    """Name what is loaded beside the weights."""
    return sorted(name for name in names if "/" not in name and name.endswith(_OTHERS))


def indexed(index: str) -> Sequence[str]:
    """Name the files in the text of a ``model.safetensors.index.json``."""
    weight_map = json_object(index).get("weight_map")
    named = weight_map.values() if isinstance(weight_map, dict) else ()
    return sorted({name for name in named if isinstance(name, str)})


def inside(name: str) -> bool:
    """Tell whether a file's name leads nowhere but into the folder that it is looked for in."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object; anything else is an empty one, since it says nothing."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
