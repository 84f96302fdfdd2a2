"""Makes tiny models with random weights, one of each family, whose tokenizers are the demo model's.

Each of them is a whole directory, as a publisher uploads it. vLLM's CPU backend refuses heads of 16
elements, so all heads have 64.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    set_seed,
)

from support.models.damaged import WEIGHTS
from support.models.minilm import MODEL as MINILM
from support.models.vision import make_vision_model

SEED = 11
LENGTH = 512  # tokens
# Names of these sizes are the same in most families; a family ignores the names of others.
SIZES: Mapping[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": LENGTH,
}
EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
# Text models, with the sizes whose names differ.
TEXT: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 64},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": LENGTH},
    "gpt_neox": {},
    "opt": {"ffn_dim": 256, "word_embed_proj_dim": 128},
    "bloom": {"n_layer": 2, "n_head": 2},
    "stablelm": {},
    "olmo2": {},
    "granite": {},
    "mamba": {"state_size": 16},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "t5": {"d_model": 128, "d_kv": 64, "num_layers": 2, "num_heads": 2, "d_ff": 256},
}
AUDIO = "<|AUDIO|>"
AUDIO_SIZES: Mapping[str, int] = {
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 256,
    "num_mel_bins": 80,
}
# Writes a model into a directory, with the demo model's tokenizer.
Maker = Callable[[Path, Path], object]


def _make_config(family: str, **values: Any) -> Any:
    return CONFIG_MAPPING[family](**values)


def _add_special_tokens(tokenizer: Any) -> dict[str, Any]:
    """Return the sizes with the tokenizer's vocabulary and the ids of its special tokens."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    return {**SIZES, "vocab_size": len(tokenizer), **ids}


def _save(model_class: Any, config: Any, folder: Path) -> None:
    set_seed(SEED)
    make = getattr(model_class, "from_config", model_class)
    make(config).save_pretrained(folder)


def _copy_tokenizer(demo: Path, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo / name, folder / name)


def _make_text_model(family: str) -> Maker:
    def make(folder: Path, demo: Path) -> None:
        sizes = _add_special_tokens(AutoTokenizer.from_pretrained(demo))
        config = _make_config(family, **{**sizes, **TEXT[family]})
        _save(AutoModel if family == "t5" else AutoModelForCausalLM, config, folder)
        _copy_tokenizer(demo, folder)

    return make


def _make_classifier(folder: Path, demo: Path) -> None:
    sizes = _add_special_tokens(AutoTokenizer.from_pretrained(demo))
    config = _make_config("xlm-roberta", **sizes, num_labels=1)
    _save(AutoModelForSequenceClassification, config, folder)
    _copy_tokenizer(demo, folder)


def _make_qwen2_audio(folder: Path, demo: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(demo)
    tokenizer.add_tokens([AUDIO, "<|audio_bos|>", "<|audio_eos|>"], special_tokens=True)
    features = WhisperFeatureExtractor(AUDIO_SIZES["num_mel_bins"])  # type: ignore[no-untyped-call]  # no types
    Qwen2AudioProcessor(features, tokenizer).save_pretrained(folder)  # type: ignore[no-untyped-call]  # no types
    text = _make_config("qwen2", **_add_special_tokens(tokenizer))
    config = _make_config(
        "qwen2_audio",
        audio_config={"model_type": "qwen2_audio_encoder", **AUDIO_SIZES},
        text_config=text.to_dict(),
        audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),
    )
    _save(Qwen2AudioForConditionalGeneration, config, folder)
    # Publishers' files have the shorter names, which vLLM expects.
    tensors = load_file(folder / WEIGHTS)
    long, short = "language_model.model.model.", "language_model.model."
    renamed = {name.replace(long, short): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / WEIGHTS, {"format": "pt"})
    shutil.copy(demo / "chat_template.jinja", folder)


def _make_whisper(folder: Path, demo: Path) -> None:
    decoder = {name.replace("encoder", "decoder"): size for name, size in AUDIO_SIZES.items()}
    sizes = _add_special_tokens(AutoTokenizer.from_pretrained(demo))
    config = _make_config("whisper", **{**sizes, **AUDIO_SIZES, **decoder})
    _save(WhisperForConditionalGeneration, config, folder)
    WhisperFeatureExtractor(AUDIO_SIZES["num_mel_bins"]).save_pretrained(folder)  # type: ignore[no-untyped-call]  # no types
    _copy_tokenizer(demo, folder)


MAKERS: Mapping[str, Maker] = {
    "demo": lambda folder, demo: shutil.copytree(demo, folder),
    "minilm": lambda folder, _: shutil.copytree(MINILM, folder),
    **{family: _make_text_model(family) for family in TEXT},
    "classifier": _make_classifier,
    "idefics3": make_vision_model,
    "qwen2_audio": _make_qwen2_audio,
    "whisper": _make_whisper,
}
