"""Which files of a model vLLM loads: its weights once, not in every format they are there in."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from worker.store.snapshot import Kind, Wanted

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
# What may refer to code.
CONFIGS = (CONFIG, "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")

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

# Configurations, tokenizers and templates.
_OTHERS = (".codes", ".json", ".jinja", ".model", ".tiktoken", ".txt")
# Mistral's tokenizers carry their version behind the ending.
_VERSIONED = re.compile(r"tokenizer\.model\.v\d+(m\d+)?")
_CODE = ".py"
# Folders with the same model once more, in another form, or what a training left.
_ELSEWHERE = re.compile(r"onnx|openvino|original|coreml|gguf|runs|checkpoint-\d+|\..*")
# The layers that a model of sentence-transformers has behind its own: 2_Dense/model.safetensors.
_LAYER = re.compile(r"\d+_\w+/(model\.safetensors|pytorch_model\.bin)")

# What some of vLLM's models read by name, beside their weights.
_BESIDE = re.compile(
    r"adapters/[^/]+/adapter_model\.safetensors|whisper-large-v3/[^/]+\.safetensors"
    r"|joint_head\.safetensors|(mask_embedding|sparse_linear|colbert_linear)\.pt"
)
# Where the weights are of those that have none at the root: transformer/, vae_encoder/.
_NESTED = "[tv]*er/*.safetensors"
# One of several parts that the weights are in.
_SHARD = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\..*)")

# What names of a tokenizer's files have in them, and how those end that have not.
_TOKENIZERS = ("tok", "vocab", "tekken")
_TOKENIZER_ENDINGS = (".model", ".tiktoken")


def needed(names: Collection[str], index: Collection[str], wanted: Wanted) -> list[str]:
    """Name all that is to be on the disk; with weights that only the index names.

    Args:
        names: of all files of the repository, with their folders.
        index: files that ``model.safetensors.index.json`` names.
        wanted: what is loaded of it.
    """
    beside = filter(_BESIDE.fullmatch, names) if wanted.kind is Kind.MODEL else ()
    loaded = [*weights_of(names, index, wanted), *beside, *others(names, code=wanted.code)]
    return [*dict.fromkeys(loaded)]


def weights_of(names: Collection[str], index: Collection[str], wanted: Wanted) -> list[str]:
    """Name the weights that are loaded of a repository: of some kinds of it, none."""
    weightless = wanted.kind in {Kind.TOKENIZER, Kind.CODE}
    return [] if weightless else weights(names, index, wanted.load_format)


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
    return sorted(name for name in names if fnmatch(name, _NESTED)) if load_format == "auto" else []


def shards_lacking(names: Collection[str]) -> list[str]:
    """Name the parts that are not there, of those that others say there are."""
    parts = [match for name in names if (match := _SHARD.fullmatch(name))]
    wanted = {
        f"{first}{number:0{len(digits)}}{between}{total}{rest}"
        for first, digits, between, total, rest in (match.groups() for match in parts)
        for number in range(1, int(total) + 1)
    }
    return sorted(wanted - set(names))


def others(names: Collection[str], code: bool = True) -> list[str]:
    """Name what is loaded beside the weights, with or without the model's own code."""
    endings = (*_OTHERS, _CODE) if code else _OTHERS
    return sorted(
        name
        for name in names
        if not any(map(_ELSEWHERE.fullmatch, name.split("/")[:-1]))
        and (name.endswith(endings) or _LAYER.fullmatch(name) or _VERSIONED.fullmatch(name))
    )


def loadable(names: Iterable[str], wanted: Wanted) -> bool:
    """Tell whether there is something to load among the files that are needed."""
    if wanted.kind is Kind.TOKENIZER:
        return any(map(_of_tokenizer, names))
    if wanted.kind is Kind.CODE:
        return any(name.endswith(_CODE) for name in names)
    if wanted.load_format == "dummy":
        return CONFIG in names
    return bool(weights(tuple(names), (), wanted.load_format))


def _of_tokenizer(name: str) -> bool:
    return name.endswith(_TOKENIZER_ENDINGS) or any(word in name for word in _TOKENIZERS)


def code_elsewhere(configuration: str) -> set[str]:
    """Name the other repositories whose code a configuration refers to: owner/name--file.Class."""
    mapped = json_object(configuration).get("auto_map")
    several = mapped.values() if isinstance(mapped, dict) else ()
    # A tokenizer has a slow and a fast one.
    named = [each for value in several for each in (value if isinstance(value, list) else [value])]
    return {each.partition("--")[0] for each in named if isinstance(each, str) and "--" in each}


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
