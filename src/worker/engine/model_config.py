"""vLLM's own reading of a model's configuration, made without the model's weights."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from pydantic import ValidationError

from worker.engine.arguments import EngineArguments
from worker.engine.options.architectures import registered
from worker.engine.options.option import reasons
from worker.engine.seam.locations import find
from worker.engine.seam.translation import START_ERRORS
from worker.errors import StartFailed, in_settings

# What vLLM and transformers raise for a configuration that is malformed.
MALFORMED = (*START_ERRORS, ArithmeticError, AssertionError, AttributeError, StrictDataclassError)

# Types of layers that keep every token of a text, and those that keep only the last ones.
_FULL = frozenset({"attention", "full_attention"})
_WINDOWED = frozenset({"chunked_attention", "sliding_attention"})
# Keys of windows that models without types of layers have, next to ``sliding_window``.
_WINDOWS = ("attention_chunk_size", "rswa_window")
# Keys of models with a second cache or an index: vLLM's configuration has no common word for them,
# only the layers of the loaded model know.
_SECOND_CACHES = ("compress_ratios", "index_topk", "indexer_n_heads", "sparse_attention_config")
# What the names of vLLM's models begin with that run transformers' code.
_BACKENDS = "Transformers"
# More tokens than any text has.
_ENDLESS = 2**31
# Characters of a refusal: some list all that vLLM has.
_REASON = 300

UNSERVED = "the model does nothing but write down speech, and no route of the worker serves that"


@dataclass(frozen=True)
class ModelShape:
    """What decides how much memory a model's cache takes, and how long a text may be.

    Attributes:
        layers: those that may have a cache.
        full_layers: those of them that are known to keep every token of a text.
        heads: attention heads of a layer.
        kv_heads: those of them that have keys and values of their own.
        head_size: elements of a head's key, and of its value; with a latent cache, of both.
        latent: whether one compressed state stands for the keys and values of all heads (MLA).
        bounded: whether no layer keeps more than every token's keys and values.
        element_bytes: size of an element in the type that the model computes in.
        length: tokens of the longest text that the model is served with by default.
        longest: the largest such length that vLLM accepts; None if it accepts any.
        length_key: the key of config.json that limits the length; empty if there is none.
        served: whether a route of the worker can use the model.
    """

    layers: int
    full_layers: int
    heads: int
    kv_heads: int
    head_size: int
    latent: bool
    bounded: bool
    element_bytes: int
    length: int
    longest: int | None
    length_key: str
    served: bool = True


def create_model_config(arguments: EngineArguments) -> Any:
    """Return vLLM's ``ModelConfig``, as a start makes it."""
    return find("AsyncEngineArgs").from_cli_args(arguments.vllm).create_model_config()


def load_classes(architectures: Sequence[str]) -> None:
    """Import the models' code: vLLM would do so in a process that has to import vLLM first."""
    registry = find("ModelRegistry")
    names = registered(architectures)
    if {*architectures} - {*names}:
        # Those that vLLM may run by transformers' code.
        names += [name for name in registry.get_supported_archs() if name.startswith(_BACKENDS)]
    for name in names:
        registry.register_model(name, registry.models[name].load_model_cls())


def read_model_shape(arguments: EngineArguments, architectures: Sequence[str]) -> ModelShape:
    """Return a model's shape as vLLM reads it.

    Args:
        arguments: with a directory as the model, in which there is at least its config.json.
        architectures: those that config.json names.

    Raises:
        StartFailed: vLLM refuses the model, or the arguments for it.
    """
    try:
        load_classes(architectures)
        # A length that is too large would be refused before anything else is known.
        return _shape(create_model_config(arguments.with_options(max_model_len=None)))
    except MALFORMED as error:
        text = reasons(error) if isinstance(error, ValidationError) else str(error)
        reason = shorten(text, _REASON, placeholder=" ...") or type(error).__name__
        raise StartFailed(in_settings(reason)) from error


def _shape(config: Any) -> ModelShape:
    text, architecture = config.hf_text_config, config.model_arch_config
    # vLLM counts a pair of attention layers as one, where a model's layers have two each.
    layers = max(architecture.total_num_hidden_layers, getattr(text, "num_hidden_layers", 0) or 0)
    longest = _longest(config)
    return ModelShape(
        layers=layers,
        full_layers=_full_layers(config, layers, longest),
        heads=architecture.total_num_attention_heads,
        kv_heads=config.get_total_num_kv_heads(),
        head_size=config.get_head_size(),
        latent=config.use_mla,
        bounded=_bounded(config),
        element_bytes=config.dtype.itemsize,
        length=config.max_model_len,
        longest=longest,
        length_key=architecture.derived_max_model_len_and_key[1] or "",
        served=is_served(config),
    )


def is_served(config: Any) -> bool:
    """Return whether a route of the worker can use a model, by vLLM's ``ModelConfig`` of it."""
    return not config.registry.is_transcription_only_model(config.architectures, config)


def _longest(config: Any) -> int | None:
    """Return the largest length that vLLM accepts, None if it accepts any, by trying lengths."""

    def refused(length: int) -> bool:
        try:
            config.get_and_verify_max_len(length)
        except ValueError:
            return True
        return False

    longest = bisect_left(range(_ENDLESS), True, lo=1, key=refused) - 1
    return None if longest == _ENDLESS - 1 else longest


def _bounded(config: Any) -> bool:
    text = config.hf_text_config
    has_states = config.has_inner_state or config.is_hybrid or config.is_encoder_decoder
    # Values of another size than keys, which vLLM keeps as such unless it compresses both.
    uneven = config.has_noops or (not config.use_mla and _has(text, ("v_head_dim",)))
    unknown = {*_layer_types(text)} - _FULL - _WINDOWED
    return not (has_states or uneven or unknown or _has(text, _SECOND_CACHES))


def _full_layers(config: Any, layers: int, longest: int | None) -> int:
    text = config.hf_text_config
    uneven = getattr(config.model_arch_config, "per_layer_overrides", None)
    if uneven or _has(text, ("num_kv_shared_layers",)):
        return 0
    if types := _layer_types(text):
        return sum(type_ in _FULL for type_ in types)
    window = config.get_sliding_window()
    forgets = window and (longest is None or window < longest)
    return 0 if forgets or _has(text, _WINDOWS) or not _bounded(config) else layers


def _layer_types(text: Any) -> Sequence[str]:
    return getattr(text, "layer_types", None) or ()


def _has(text: Any, keys: Sequence[str]) -> bool:
    return any(getattr(text, key, None) for key in keys)
