"""Selects the files that vLLM loads: weights in one format, configuration, tokenizer and code."""

import json
import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from worker.store.snapshot import Artifact, ArtifactKind

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
# A model has one of these, in the format of Hugging Face or of Mistral.
MODEL_CONFIGS = frozenset({CONFIG, "params.json"})
# Configuration files that may refer to code.
CONFIGS = (CONFIG, "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")

# Patterns of weights by LOAD_FORMAT; vLLM loads the files of the first pattern that matches. If a
# repository has both formats, Mistral's own precedes Hugging Face's.
_PATTERNS = {
    "auto": ("consolidated*.safetensors", "*.safetensors", "*.bin", "*.pt"),
    "hf": ("*.safetensors", "*.bin", "*.pt"),
    "mistral": ("consolidated*.safetensors",),
    "safetensors": ("*.safetensors",),
    "fastsafetensors": ("*.safetensors",),
    "instanttensor": ("*.safetensors",),
    "runai_streamer": ("*.safetensors",),
    "pt": ("*.pt",),
    "npcache": ("*.bin",),
    "gguf": ("*.gguf",),
    "sharded_state": ("model-rank-0-part-*.safetensors",),
    "dummy": (),
}

# Files of trainers, which are never loaded.
_TRAINER_FILES = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}

# Suffixes of configurations, tokenizers and templates.
_OTHER_SUFFIXES = (".codes", ".json", ".jinja", ".model", ".tiktoken", ".txt")
# Mistral's tokenizers have a version after the suffix.
_TOKENIZER = re.compile(r"tokenizer\.model\.v\d+(m\d+)?")
_CODE_SUFFIX = ".py"
# Folders with other formats of the same model, and with data of its training.
_SKIPPED_FOLDERS = re.compile(r"onnx|openvino|original|coreml|gguf|runs|checkpoint-\d+|\..*")
# Layers that sentence-transformers adds to a model: 2_Dense/model.safetensors.
_LAYER = re.compile(r"\d+_\w+/(model\.safetensors|pytorch_model\.bin)")

# Files that some of vLLM's models read by name, in addition to their weights.
_EXTRA_WEIGHTS = re.compile(
    r"adapters/[^/]+/adapter_model\.safetensors|whisper-large-v3/[^/]+\.safetensors"
    r"|joint_head\.safetensors|(mask_embedding|sparse_linear|colbert_linear)\.pt"
)
# Weights of models that have them only in folders such as transformer/ and vae_encoder/.
_NESTED_WEIGHTS = "[tv]*er/*.safetensors"
# One of several shards: model-00001-of-00002.safetensors.
_SHARD = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\..*)")

# Words in the names of a tokenizer's files. Others have the suffix .model.
_TOKENIZER_WORDS = ("tok", "vocab", "tekken")


def needed_files(names: Collection[str], index: str, artifact: Artifact) -> list[str]:
    """Return the names of all files to load, also those in the index that don't exist.

    ``names`` are all files of the repository, as paths in it. ``index`` is the text of its
    ``model.safetensors.index.json``; empty without such a file.
    """
    extra = filter(_EXTRA_WEIGHTS.fullmatch, names) if artifact.kind is ArtifactKind.MODEL else ()
    files = [
        *weight_files(names, index, artifact),
        *extra,
        *non_weight_files(names, code=artifact.code),
    ]
    return [*dict.fromkeys(files)]


def weight_files(names: Collection[str], index: str, artifact: Artifact) -> list[str]:
    """Return the sorted names of the weights to load; the arguments are as in ``needed_files``."""
    if artifact.kind in {ArtifactKind.TOKENIZER, ArtifactKind.CODE}:
        return []
    roots = [name for name in names if "/" not in name and name not in _TRAINER_FILES]
    for pattern in _PATTERNS.get(artifact.load_format, _PATTERNS["hf"]):
        if matches := [name for name in roots if fnmatch(name, pattern)]:
            indexed = _files_in_index(index) if pattern == "*.safetensors" else set()
            return sorted(indexed or matches)
    nested = [name for name in names if fnmatch(name, _NESTED_WEIGHTS)]
    return sorted(nested) if artifact.load_format == "auto" else []


def weight_patterns(load_format: str) -> tuple[str, ...]:
    """Return the patterns of a load format's weights; empty if vLLM may read other files."""
    return _PATTERNS.get(load_format, ())


def missing_shards(names: Collection[str]) -> list[str]:
    """Return the names of missing shards; any shard's name contains the total number."""
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    expected = {
        f"{first}{number:0{len(digits)}}{between}{total}{rest}"
        for first, digits, between, total, rest in (match.groups() for match in shards)
        for number in range(1, int(total) + 1)
    }
    return sorted(expected - set(names))


def non_weight_files(names: Collection[str], code: bool = True) -> list[str]:
    """Return the sorted names of the non-weight files to load; ``code`` includes Python files."""
    suffixes = (*_OTHER_SUFFIXES, _CODE_SUFFIX) if code else _OTHER_SUFFIXES
    return sorted(
        name
        for name in names
        if not any(map(_SKIPPED_FOLDERS.fullmatch, name.split("/")[:-1]))
        and (name.endswith(suffixes) or _LAYER.fullmatch(name) or _TOKENIZER.fullmatch(name))
    )


def has_required_files(names: Iterable[str], artifact: Artifact) -> bool:
    if artifact.kind is ArtifactKind.TOKENIZER:
        return any(map(_is_tokenizer_file, names))
    if artifact.kind is ArtifactKind.CODE:
        return any(name.endswith(_CODE_SUFFIX) for name in names)
    if artifact.load_format == "dummy":
        return CONFIG in names
    return bool(weight_files(tuple(names), "", artifact))


def _is_tokenizer_file(name: str) -> bool:
    return name.endswith(".model") or any(word in name for word in _TOKENIZER_WORDS)


def is_vocabulary(name: str) -> bool:
    return _is_tokenizer_file(name) and not name.endswith("_config.json")


def code_repositories(configuration: str) -> set[str]:
    """Return the other repositories whose code a configuration's text refers to.

    An ``auto_map`` names their classes as ``owner/name--file.Class``.
    """
    mapped = parse_json_object(configuration).get("auto_map")
    values = mapped.values() if isinstance(mapped, dict) else ()
    # A tokenizer's value is a list with its slow and its fast class.
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return {name.partition("--")[0] for name in names if isinstance(name, str) and "--" in name}


def has_weight_map(index: str) -> bool:
    return bool(_files_in_index(index))


def _files_in_index(index: str) -> set[str]:
    weight_map = parse_json_object(index).get("weight_map")
    values = weight_map.values() if isinstance(weight_map, dict) else ()
    return {name for name in values if isinstance(name, str)}


def is_inside_folder(name: str) -> bool:
    """Return whether a name, interpreted as a path in a folder, stays inside the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; return an empty one for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
