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
from worker.store.files import CONFIG, CONFIGS, INDEX, has_required_files

# Settings that replace the model's configuration, and others that change the weights that vLLM
# expects, the likeliest cause first.
_CONFIG_SETTINGS = ("HF_OVERRIDES", "HF_CONFIG_PATH")
_SETTINGS = (*_CONFIG_SETTINGS, "LOAD_FORMAT", "QUANTIZATION", "MODEL_IMPL")
# JSON files that vLLM and its libraries read.
_JSON_FILES = (*CONFIGS, "generation_config.json", "tokenizer.json", INDEX)
# Keys of a configuration whose values are dimensions of tensors. In a mixture of experts, no tensor
# may have the last one.
_DIMENSIONS = ("vocab_size", "hidden_size")
_DENSE_DIMENSIONS = (*_DIMENSIONS, "intermediate_size")
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
        for file in _JSON_FILES:
            if _is_broken_json(folder / file):
                return f"{file} is not valid JSON: copy it again, or change {name}"
    if not model.is_dir():
        return ""
    names = [path.name for path in model.iterdir()]
    if CONFIG not in names and "config" in problem:
        return f"there is no {CONFIG}: copy the whole model again, or change {setting}"
    kind = Artifact(str(model), kind=ArtifactKind.TOKENIZER)
    if "tokenizer" in problem and not (tokenizer or has_required_files(names, kind)):
        return "there are no tokenizer files: add them, or set TOKENIZER_NAME"
    return ""


def explain_load_failure(arguments: EngineArguments, model_config: Any) -> str:
    """Return how the weights differ from the configuration, and the setting or file to change.

    Args:
        arguments: Arguments of the engine, whose model is a directory.
        model_config: vLLM's configuration of the model.
    """
    if dict(arguments.vllm_args.speculative_config or {}).get("model"):
        source = arguments.setting_name("SPECULATIVE_CONFIG")
        return f"the weights of the model, or of its draft in {source}, do not match their {CONFIG}"
    directory = Path(arguments.vllm_args.model)
    artifact = Artifact(str(directory), load_format=str(arguments.vllm_args.load_format))
    paths = disk.weight_paths(directory, artifact)
    names = ", ".join(path.name for path in paths[:_MAX_FILES]) or "the weights"
    quantized = model_config.quantization is not None
    mismatch = "" if quantized else _find_mismatch(paths, model_config.hf_text_config)
    settings = _CONFIG_SETTINGS if mismatch else _SETTINGS
    option = next((name for name in settings if name in arguments.operator_options), None)
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
    except FileNotFoundError:
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
    has_experts = any("expert" in key for key in vars(config))
    for key in _DIMENSIONS if has_experts else _DENSE_DIMENSIONS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value not in sizes:
            return f"{key}={value}"
    # The weights may have further layers: of a vision tower, or to predict several tokens.
    layers = {int(match[1]) for name in shapes if (match := _LAYER_INDEX.search(name))}
    value = getattr(config, _LAYERS, None)
    has_too_few = bool(layers) and isinstance(value, int) and value > max(layers) + 1
    return f"{_LAYERS}={value}" if has_too_few else ""
