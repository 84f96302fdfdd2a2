"""Explains why vLLM refuses a model, from the model's files and the settings that describe them."""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from worker.engine.arguments import EngineArguments
from worker.store import Artifact, ArtifactKind, disk
from worker.store.files import CONFIG, has_required_files

# Settings that change the weights that vLLM expects, the likeliest cause first.
_SETTINGS = ("HF_OVERRIDES", "HF_CONFIG_PATH", "LOAD_FORMAT", "QUANTIZATION", "MODEL_IMPL")
# Keys of a configuration whose values are dimensions of tensors.
_DIMENSIONS = ("vocab_size", "hidden_size", "intermediate_size")
_LAYERS = "num_hidden_layers"
_LAYER_INDEX = re.compile(r"\blayers\.(\d+)\.")
# Maximum number of files that a message names.
_MAX_FILES = 3


def explain_refusal(arguments: EngineArguments, problem: str) -> str:
    """Return the missing or broken file that vLLM's message is about; empty if it is unknown."""
    model, setting = Path(arguments.vllm_args.model), arguments.model_setting
    tokenizer = arguments.vllm_args.tokenizer
    folders = {model: setting}
    if tokenizer:
        folders |= {Path(tokenizer): arguments.setting_name("TOKENIZER_NAME")}
    for folder, name in folders.items():
        if broken := next(filter(_is_broken_json, sorted(folder.glob("*.json"))), None):
            return f"{broken.name} is not valid JSON: copy it again, or change {name}"
    if not model.is_dir():
        return ""
    names = [path.name for path in model.iterdir()]
    if CONFIG not in names and "config" in problem:
        return f"there is no {CONFIG}: copy the whole model again, or change {setting}"
    kind = Artifact(str(model), kind=ArtifactKind.TOKENIZER)
    if "tokenizer" in problem and not (tokenizer or has_required_files(names, kind)):
        return "there are no files of a tokenizer: add them, or set TOKENIZER_NAME"
    return ""


def explain_load_failure(arguments: EngineArguments, model_config: Any) -> str:
    """Return how the weights differ from the configuration, and the setting or file to change.

    Args:
        arguments: Arguments of the engine, whose model is a directory.
        model_config: vLLM's configuration of the model.
    """
    directory = Path(arguments.vllm_args.model)
    artifact = Artifact(str(directory), load_format=str(arguments.vllm_args.load_format))
    paths = disk.weight_paths(directory, artifact)
    names = ", ".join(path.name for path in paths[:_MAX_FILES]) or "the weights"
    mismatch = _find_mismatch(paths, model_config.hf_text_config)
    option = next((name for name in _SETTINGS if name in arguments.operator_options), None)
    if option is None:
        source, model = CONFIG, arguments.model_setting
        change = f"use the {CONFIG} of these weights, or set {model} to another model"
    else:
        source = arguments.setting_name(option)
        change = f"leave {source} unset"
    if mismatch:
        return f"{source} says {mismatch}, which does not match {names}: {change}"
    return f"{names} can't be read or does not match {source}: {change}"


def _is_broken_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except OSError:
        return False
    except (ValueError, RecursionError):
        return True
    return False


def _find_mismatch(paths: Sequence[Path], config: Any) -> str:
    """Return the key and value of a configuration that contradict the weights; empty if unknown."""
    shapes = dict[str, Sequence[int]]()
    for path in paths:
        # The weights may be damaged, or in another format.
        with contextlib.suppress(OSError, SafetensorError):
            shapes |= {name: shape for name, _, shape in disk.read_tensor_headers(path)}
    if not shapes:
        return ""
    sizes = {size for shape in shapes.values() for size in shape}
    for key in _DIMENSIONS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value not in sizes:
            return f"{key}={value}"
    layers = {int(match[1]) for name in shapes if (match := _LAYER_INDEX.search(name))}
    value = getattr(config, _LAYERS, None)
    return f"{_LAYERS}={value}" if layers and value != max(layers) + 1 else ""
