"""Which files of a repository vLLM loads: weights in one format, configuration, tokenizer, code."""

import json
import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from worker.store.snapshot import Kind, Wanted

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
# Files that may refer to code.
CONFIGS = (CONFIG, "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")

# Patterns of weights by LOAD_FORMAT: vLLM loads the first that matches. Mistral's own format wins
# over Hugging Face's where a repository has both.
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

# Files that trainers leave behind, never loaded.
_TRAINING = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}

# Configurations, tokenizers and templates.
_OTHERS = (".codes", ".json", ".jinja", ".model", ".tiktoken", ".txt")
# Mistral's tokenizers have their version after the suffix.
_VERSIONED = re.compile(r"tokenizer\.model\.v\d+(m\d+)?")
_CODE = ".py"
# Folders of the same model in other formats, and of training.
_ELSEWHERE = re.compile(r"onnx|openvino|original|coreml|gguf|runs|checkpoint-\d+|\..*")
# Layers that sentence-transformers adds to a model: 2_Dense/model.safetensors.
_LAYER = re.compile(r"\d+_\w+/(model\.safetensors|pytorch_model\.bin)")

# Files that some of vLLM's models read by name, in addition to their weights.
_NAMED = re.compile(
    r"adapters/[^/]+/adapter_model\.safetensors|whisper-large-v3/[^/]+\.safetensors"
    r"|joint_head\.safetensors|(mask_embedding|sparse_linear|colbert_linear)\.pt"
)
# Weights of models that have none at the root: transformer/, vae_encoder/.
_NESTED = "[tv]*er/*.safetensors"
# One of several shards: model-00001-of-00002.safetensors.
_SHARD = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\..*)")

# A tokenizer's files have one of these words in their names, or one of these suffixes.
_TOKENIZER_WORDS = ("tok", "vocab", "tekken")
_TOKENIZER_SUFFIXES = (".model", ".tiktoken")


def needed(names: Collection[str], index: str, wanted: Wanted) -> list[str]:
    """Return the names of all files that are loaded; the index may name some that don't exist.

    Args:
        names: all files of the repository, as paths in it.
        index: the text of its ``model.safetensors.index.json``; empty if there is none.
        wanted: what is loaded of it.
    """
    named = filter(_NAMED.fullmatch, names) if wanted.kind is Kind.MODEL else ()
    loaded = [*weights(names, index, wanted), *named, *others(names, code=wanted.code)]
    return [*dict.fromkeys(loaded)]


def weights(names: Collection[str], index: str, wanted: Wanted) -> list[str]:
    """Return the names of the weights that are loaded, sorted; as in ``needed``."""
    if wanted.kind in {Kind.TOKENIZER, Kind.CODE}:
        return []
    roots = [name for name in names if "/" not in name and name not in _TRAINING]
    for pattern in _PATTERNS.get(wanted.load_format, _HUGGING_FACE):
        if found := [name for name in roots if fnmatch(name, pattern)]:
            indexed = _files_in_index(index) if pattern == "*.safetensors" else set()
            return sorted(indexed or found)
    nested = [name for name in names if fnmatch(name, _NESTED)]
    return sorted(nested) if wanted.load_format == "auto" else []


def shards_lacking(names: Collection[str]) -> list[str]:
    """Return the names of missing shards: the names of the others say how many there are."""
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    expected = {
        f"{first}{number:0{len(digits)}}{between}{total}{rest}"
        for first, digits, between, total, rest in (match.groups() for match in shards)
        for number in range(1, int(total) + 1)
    }
    return sorted(expected - set(names))


def others(names: Collection[str], code: bool = True) -> list[str]:
    """Return the names of what is loaded besides weights, sorted; with the model's code or not."""
    suffixes = (*_OTHERS, _CODE) if code else _OTHERS
    return sorted(
        name
        for name in names
        if not any(map(_ELSEWHERE.fullmatch, name.split("/")[:-1]))
        and (name.endswith(suffixes) or _LAYER.fullmatch(name) or _VERSIONED.fullmatch(name))
    )


def loadable(names: Iterable[str], wanted: Wanted) -> bool:
    """Return whether the needed files include what the kind and the format can't do without."""
    if wanted.kind is Kind.TOKENIZER:
        return any(map(_is_tokenizers, names))
    if wanted.kind is Kind.CODE:
        return any(name.endswith(_CODE) for name in names)
    if wanted.load_format == "dummy":
        return CONFIG in names
    return bool(weights(tuple(names), "", wanted))


def _is_tokenizers(name: str) -> bool:
    return name.endswith(_TOKENIZER_SUFFIXES) or any(word in name for word in _TOKENIZER_WORDS)


def code_elsewhere(configuration: str) -> set[str]:
    """Return the other repositories whose code a configuration's text refers to.

    An ``auto_map`` names their classes as ``owner/name--file.Class``.
    """
    mapped = json_object(configuration).get("auto_map")
    values = mapped.values() if isinstance(mapped, dict) else ()
    # A tokenizer's value is a list: the slow and the fast class.
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return {name.partition("--")[0] for name in names if isinstance(name, str) and "--" in name}


def _files_in_index(index: str) -> set[str]:
    weight_map = json_object(index).get("weight_map")
    values = weight_map.values() if isinstance(weight_map, dict) else ()
    return {name for name in values if isinstance(name, str)}


def inside(name: str) -> bool:
    """Return whether a name, taken as a path in a folder, stays in that folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; return an empty one for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
