"""The shape of a model, read from its config.json under the many names that it has there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

# Where a model that also sees or hears keeps what is said of its language model.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)

# Models with these keep less of a long text than a full cache.
_WINDOWS = (
    "attention_chunk_size",
    "num_kv_shared_layers",
    "rswa_window",
    "sliding_window",
    "sliding_window_pattern",
)
# Models with these keep something else, or something besides.
_STATES = (
    "attn_layer_period",
    "block_configs",
    "compress_ratios",
    "full_attention_interval",
    "hybrid_override_pattern",
    "index_topk",
    "layer_group_size",
    "layers_block_type",
    "linear_attn_config",
    "mamba_d_state",
    "per_layer_config",
    "ssm_state_size",
    "state_size",
    "v_head_dim",
)
# Those of the models with a compressed cache for which vLLM uses it.
_COMPRESSED = ("axk1", "bailing", "deepseek", "dots3", "glm", "hy_v4", "kimi", "longcat", "pangu")

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Kinds of rotary embedding for which the length in the configuration is the scaled one.
_SCALED = frozenset(
    "su longrope llama3 yarn deepseek_yarn deepseek_llama_scaling default mrope".split()
)
# What vLLM assumes of a model that does not say.
DEFAULT_LENGTH = 2048


@dataclass(frozen=True)
class Attention:
    """What decides how large a token is in the KV cache.

    ``latent`` is the size of the compressed state that models with MLA keep in place of keys and
    values. ``full`` is how many layers are known to keep every token. ``bounded`` is whether a full
    cache is the most that a model can need.
    """

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    latent: int | None
    full: int
    bounded: bool


@dataclass(frozen=True)
class Length:
    """How long a text may be: what the model is served with by default, and the most there is."""

    default: int
    most: int
    key: str


def text_config(config: Config) -> Config:
    """Return what is said of the language model."""
    for name in _NESTED:
        if isinstance(nested := config.get(name), Mapping):
            return text_config(nested)
    return config


def attention(config: Config) -> Attention | None:
    """Read a model's attention; None, if the configuration does not tell it."""
    text = text_config(config)
    layers, heads = _number(text, _LAYERS), _number(text, _HEADS)
    head_size = _head_size(text, heads)
    if not (layers and heads and head_size):
        return None
    one_for_all = text.get("multi_query") and not text.get("new_decoder_architecture")
    kv_heads = 1 if one_for_all else _number(text, _KV_HEADS) or heads
    latent = _latent(text)
    full, bounded = _kept(text, layers, latent)
    return Attention(layers, heads, kv_heads, head_size, latent, full, bounded)


def _head_size(text: Config, heads: int | None) -> int | None:
    if given := _number(text, ("head_dim", "hidden_size_per_head", "attention_head_dim")):
        return given
    hidden = _number(text, _HIDDEN)
    return hidden // heads if hidden and heads else None


def _latent(text: Config) -> int | None:
    rank = _number(text, ("kv_lora_rank",))
    return rank + (_number(text, ("qk_rope_head_dim",)) or 0) if rank else None


def _kept(text: Config, layers: int, latent: int | None) -> tuple[int, bool]:
    """Say how many layers keep every token, and whether no layer keeps more."""
    states = [name for name in _STATES if text.get(name)]
    if latent:
        known = str(text.get("model_type", "")).startswith(_COMPRESSED)
        compressed = known and not set(states) - {"v_head_dim"}
        return (layers, True) if compressed else (0, False)
    types = text.get("layer_types")
    if isinstance(types, list):
        # The names of transformers; any other is a layer that keeps no token, but a state.
        full = sum(each in ("full_attention", "attention") for each in types)
        windows = all(str(each).endswith("attention") for each in types) and not states
        linear = any("linear" in str(each) for each in types)
        return full, windows and not linear
    special = bool(states) or _unusual(text)
    return 0 if special or _windows(text) else layers, not special


def _windows(text: Config) -> bool:
    """Tell whether a layer may forget what is long ago; not, if its window holds every text."""
    window, longest = _number(text, ("sliding_window",)), _number(text, _LENGTHS)
    wide = bool(window and longest and window >= longest)
    names = [
        name for name in _WINDOWS if text.get(name) and not (wide and name == "sliding_window")
    ]
    return text.get("use_sliding_window") is not False and bool(names)


def _unusual(text: Config) -> bool:
    lists = any(isinstance(text.get(name), list) for name in (*_LAYERS, *_HEADS, *_KV_HEADS))
    return lists or bool(text.get("is_encoder_decoder"))


def length(config: Config) -> Length:
    """Read how long a text the model takes, by vLLM's rules."""
    text = text_config(config)
    given = {name: value for name in _LENGTHS if (value := _number(text, (name,)))}
    if own := _number(text, ("model_max_length",)):
        given = {"model_max_length": own}
    if not given:
        return Length(DEFAULT_LENGTH, 0, "")
    key = min(given, key=lambda name: given[name])
    ropes = _ropes(text)
    scaled = given[key] * _factor(text, ropes)
    original = _number(text, ("original_max_position_embeddings",))
    short = original if any(_kind(rope) in ("longrope", "su") for rope in ropes) else None
    most = max(int(scaled), _number(config, ("model_max_length",)) or 0)
    return Length(short or int(scaled), most, key)


def _ropes(text: Config) -> list[Config]:
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return []
    nested = [each for each in rope.values() if isinstance(each, Mapping)]
    return nested or [rope]


def _kind(rope: Config) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _factor(text: Config, ropes: list[Config]) -> float:
    if "gemma3" in str(text.get("model_type", "")):
        return 1.0
    factors = [rope.get("factor") for rope in ropes if _kind(rope) not in _SCALED]
    return next((float(each) for each in factors if isinstance(each, int | float)), 1.0)


def _number(config: Config, names: tuple[str, ...]) -> int | None:
    """Return the first of several names that stands for a positive number."""
    values = (config.get(name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)
