"""Reads vLLM's view of a model without its weights, from its registry and configuration."""

import math
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from pydantic import ValidationError

from worker.engine.arguments import EngineArguments
from worker.engine.options.option import join_validation_messages
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.translation import START_ERRORS, shorten_to_sentences
from worker.errors import StartFailed, replace_options_by_settings
from worker.settings.environment import process_environ, set_variable
from worker.store import disk
from worker.store.files import CONFIG, parse_json_object

# Exceptions of vLLM and transformers for malformed configurations.
CONFIG_ERRORS = (
    *START_ERRORS,
    ArithmeticError,
    AssertionError,
    AttributeError,
    StrictDataclassError,
)

# Prefix of the names of vLLM's models that run code of the transformers library.
_TRANSFORMERS_PREFIX = "Transformers"
ALLOW_LONG_CONTEXT = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
# The largest factor that YaRN is proposed for: Qwen's models, whose authors recommend it for long
# texts, are tested with factors up to 4.
_MAX_YARN_FACTOR = 4.0
# A length in tokens that exceeds the length of any sequence.
_UNBOUNDED_LENGTH = 2**31
# Maximum length of a message in characters, since some messages list everything that vLLM supports.
_MAX_MESSAGE_LENGTH = 400


def read_config(options: Namespace) -> dict[str, Any]:
    """Return the config.json of a model on the disk, with the operator's overrides of it."""
    folder, overrides = Path(options.hf_config_path or options.model), options.hf_overrides
    config = parse_json_object(disk.read_text_or_empty(folder / CONFIG))
    return config | (overrides if isinstance(overrides, dict) else {})


def architectures_in(config: Mapping[str, Any]) -> list[str]:
    listed = config.get("architectures")
    return [str(name) for name in listed] if isinstance(listed, list) else []


def registered_model_names(architectures: Sequence[str]) -> list[str]:
    """Return the models in vLLM's registry that run these architectures.

    A model has the architecture's name, or is a model that vLLM adapts to another task, such as
    ``LlamaForCausalLM`` for ``LlamaForSequenceClassification``.
    """
    supported = import_from_vllm("ModelRegistry").get_supported_archs()
    suffixes = [suffix for suffix, _ in import_from_vllm("iter_architecture_defaults")()]
    models: list[str] = []
    for architecture in architectures:
        ending = next(filter(architecture.endswith, suffixes), "")
        stem = architecture.removesuffix(ending)
        names = [architecture, *(stem + suffix for suffix in suffixes if ending)]
        models += [name for name in names if name in supported][:1]
    return models


@dataclass(frozen=True)
class ModelShape:
    """Properties that limit how a model can be divided, and how long its context can be."""

    attention_heads: int  # of a layer
    default_length: int  # tokens that the model is served with by default
    max_length: int | None  # the largest that vLLM accepts; None if it accepts any
    length_key: str  # of config.json, which limits the context length; empty without a limit


def create_model_config(arguments: EngineArguments) -> Any:
    """Return vLLM's ``ModelConfig``, created as at startup."""
    return (
        import_from_vllm("AsyncEngineArgs").from_cli_args(arguments.vllm_args).create_model_config()
    )


def import_model_classes(architectures: Sequence[str]) -> None:
    """Import the code of models in this process.

    vLLM would otherwise import it in a child process, which has to import vLLM first.
    """
    registry = import_from_vllm("ModelRegistry")
    names = registered_model_names(architectures)
    if {*architectures} - {*names}:
        # vLLM may run the other architectures with code of transformers.
        names += [
            name for name in registry.get_supported_archs() if name.startswith(_TRANSFORMERS_PREFIX)
        ]
    for name in names:
        registry.register_model(name, registry.models[name].load_model_cls())


def read_model_shape(arguments: EngineArguments, architectures: Sequence[str]) -> ModelShape:
    """Return a model's shape, as vLLM reads it from a directory with at least a config.json."""
    try:
        import_model_classes(architectures)
        # vLLM would refuse a length that is too large before it reports anything else.
        config = create_model_config(arguments.with_options(max_model_len=None))
        architecture = config.model_arch_config
        return ModelShape(
            attention_heads=architecture.total_num_attention_heads,
            default_length=config.max_model_len,
            max_length=_find_max_context_length(config),
            length_key=architecture.derived_max_model_len_and_key[1] or "",
        )
    except CONFIG_ERRORS as error:
        raise StartFailed(describe_vllm_error(error)) from error


def create_yarn_overrides(arguments: EngineArguments, length: int) -> dict[str, Any]:
    """Return HF_OVERRIDES that extend a model's context to ``length`` tokens by YaRN.

    They contain the operator's own overrides. The dictionary is empty if vLLM refuses the model, if
    its positions are not rotary, differ between layers or are scaled by other methods, and if the
    factor would be too large. Whether the model's code reads the overrides is known only after
    building it.
    """
    try:
        config = create_model_config(arguments.with_options(max_model_len=None))
        changes = _scale_positions(config, length)
    except CONFIG_ERRORS:
        return {}
    overrides, text_config = arguments.vllm_args.hf_overrides or {}, config.hf_text_config
    if not changes or text_config is config.hf_config:
        return {**overrides, **changes} if changes else {}
    parts = vars(config.hf_config).items()
    name = next((name for name, part in parts if part is text_config), "")
    return {**overrides, name: {**overrides.get(name, {}), **changes}} if name else {}


def _scale_positions(config: Any, length: int) -> dict[str, Any]:
    """Return the values for a language model's configuration; an empty dictionary if impossible."""
    rope = getattr(config.hf_text_config, "rope_parameters", None) or {}
    max_length, key = config.model_arch_config.derived_max_model_len_and_key
    if rope.get("rope_type") == "default" and key:
        factor = math.ceil(length / max_length * 100) / 100
        if not 1 < factor <= _MAX_YARN_FACTOR:
            return {}
        # These values replace all parameters, among them the base of the rotation.
        yarn = {"factor": factor, "original_max_position_embeddings": int(max_length)}
        rope = {**rope, "rope_type": "yarn", **yarn}
    elif rope.get("rope_type") != "yarn":
        return {}
    # vLLM does not multiply the maximum length by the factor.
    is_reached = rope["factor"] * rope["original_max_position_embeddings"] >= length
    return {"rope_parameters": rope, key: length} if is_reached else {}


def describe_vllm_error(error: Exception) -> str:
    """Return vLLM's error message in one line, with settings instead of its options."""
    text = join_validation_messages(error) if isinstance(error, ValidationError) else str(error)
    return replace_options_by_settings(
        shorten_to_sentences(text, _MAX_MESSAGE_LENGTH) or type(error).__name__
    )


def _find_max_context_length(config: Any) -> int | None:
    """Return the largest length that vLLM accepts, found by bisection; None if it accepts any."""

    def is_refused(length: int) -> bool:
        try:
            config.get_and_verify_max_len(length)
        except ValueError:
            return True
        return False

    # vLLM must report which lengths are too long, even if the operator allows these lengths.
    original = process_environ().get(ALLOW_LONG_CONTEXT, "0")
    set_variable(ALLOW_LONG_CONTEXT, "0")
    try:
        max_length = bisect_left(range(_UNBOUNDED_LENGTH), True, lo=1, key=is_refused) - 1
    finally:
        set_variable(ALLOW_LONG_CONTEXT, original)
    return None if max_length == _UNBOUNDED_LENGTH - 1 else max_length
