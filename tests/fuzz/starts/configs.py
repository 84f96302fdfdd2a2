"""Draws configurations that contradict a model's files, or that need packages, code or settings."""

import json
from pathlib import Path
from typing import Any

from support.models.damaged import CONFIG
from support.models.quantized import BLOCKS, WRITABLE, quantize_weights

from fuzz.starts.draft import (
    EMBEDDER,
    MEDIA,
    OPTIONS,
    POOLING,
    TEXT,
    TOKENIZER_CONFIG,
    USUAL,
    Draft,
    read_config,
    write_config,
)

GENERATION_CONFIG = "generation_config.json"
# The processor of a model with vision or hearing; older versions of transformers wrote the second.
PROCESSOR, OLD_PROCESSOR = "processor_config.json", "preprocessor_config.json"


def draw_contradiction(draft: Draft) -> None:
    """Change one or two values of config.json, also in its nested parts."""
    directory = draft.copy_base()
    config = read_config(directory)
    for _ in range(draft.rng.choice((1, 1, 2))):
        draft.change_value(draft.rng.choice(_parts(config)))
    write_config(directory, config)


def draw_quantization(draft: Draft) -> None:
    """Add a quantization block to config.json, with or without the weights of its format."""
    directory = draft.copy_base(*USUAL, *USUAL, "mixtral", "qwen3_moe", "phi3", "opt", "gpt2")
    if draft.is_chosen(0.4, "quantized weights"):
        quantize_weights(directory, draft.choose(WRITABLE))
        config = read_config(directory)
        block = config["quantization_config"]
        if draft.is_chosen(0.3, "contradiction") and isinstance(block, dict):
            draft.change_value(block)
    else:
        config = read_config(directory)
        block = BLOCKS[draft.choose([*BLOCKS])]
        name = draft.choose(
            ("quantization_config",) * 6 + ("compression_config", "quantize_config.json"), "in {}"
        )
        if name.endswith(".json"):
            write_config(directory, block, name)
        else:
            config[name] = block
            if isinstance(block, dict) and block and draft.is_chosen(0.2, "changed"):
                config[name] = block = dict(block)
                draft.change_value(block)
    write_config(directory, config)
    if draft.rng.random() < 0.4:
        draft.settings["DTYPE"] = draft.rng.choice(("bfloat16", "float16"))
    if draft.rng.random() < 0.2:
        draft.settings["QUANTIZATION"] = draft.rng.choice(OPTIONS["QUANTIZATION"])


def draw_rope(draft: Draft) -> None:
    """Scale positions, in a setting or in an override, with and without a longer context."""
    draft.copy_base("llama", "qwen3", "qwen2", "demo", "phi3", "gpt_neox")
    scaling: dict[str, Any] = {"rope_type": draft.choose(("yarn", "linear", "dynamic", "llama3"))}
    scaling["factor"] = draft.rng.choice((2.0, 4.0, 4, "4", 0))
    if draft.rng.random() < 0.7:
        scaling["original_max_position_embeddings"] = draft.rng.choice((256, 512, 2048))
    if draft.rng.random() < 0.5:
        scaling["rope_theta"] = 10000.0
    if draft.rng.random() < 0.3:
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    override: dict[str, Any] = {}
    if draft.rng.random() < 0.3:
        override["max_position_embeddings"] = draft.rng.choice((1024, 2048, 8192))
    if draft.rng.random() < 0.3:
        draft.settings["ROPE_SCALING"] = json.dumps(scaling)
    else:
        name = draft.rng.choice(("rope_scaling", "rope_parameters", "rope_parameters"))
        override[name] = scaling
    if override:
        draft.settings["HF_OVERRIDES"] = json.dumps(override)
    if draft.rng.random() < 0.7:
        draft.settings["MAX_MODEL_LEN"] = draft.rng.choice(("512", "1024", "2048", "8192"))


def draw_generation_config(draft: Draft) -> None:
    directory = draft.copy_base(*USUAL, "gemma", *MEDIA)
    path = directory / GENERATION_CONFIG
    config = json.loads(path.read_text()) if path.exists() else {}
    name = draft.rng.choice(
        ("eos_token_id", "temperature", "top_p", "top_k", "max_new_tokens", "repetition_penalty")
    )
    config[name] = draft.choose((None, 0, -1, 10**9, "foo", [], [3, "x"], 1.5), f"{name}={{!r}}")
    write_config(directory, config, GENERATION_CONFIG)


def draw_pooling(draft: Draft) -> None:
    """Change the parts of a model that embeds or ranks, or pool with a model that generates."""
    directory = draft.copy_base(*POOLING, *POOLING, *USUAL)
    names = ("modules.json", "1_Pooling/config.json", CONFIG)
    if draft.is_chosen(0.5, "changed"):
        name = draft.choose([name for name in names if (directory / name).exists()])
        content = json.loads((directory / name).read_text())
        part = content if isinstance(content, dict) else draft.rng.choice(content)
        draft.change_value(part)
        write_config(directory, content, name)
    values = {
        "RUNNER": ("pooling", "generate", "auto"),
        "CONVERT": ("embed", "classify", "none"),
        "POOLER_CONFIG": (*OPTIONS["POOLER_CONFIG"], '{"pooling_type": "FOO"}'),
        "MAX_MODEL_LEN": ("128", "512", "2048"),
        "HF_OVERRIDES": (
            '{"num_labels": 3}',
            '{"architectures": ["Qwen3ForSequenceClassification"]}',
            '{"architectures": ["BertForSequenceClassification"]}',
            '{"is_matryoshka": true}',
        ),
        EMBEDDER: (str(draft.bases.get("minilm")), str(draft.bases.get("gpt2")), "org/name"),
    }
    for name in draft.rng.sample([*values], draft.rng.choice((0, 1, 2))):
        draft.settings[name] = draft.rng.choice(values[name])


def draw_architecture(draft: Draft) -> None:
    """Name an architecture or a type that does not fit the weights."""
    directory = draft.copy_base(*TEXT, *POOLING, *MEDIA)
    config = read_config(directory)
    other = read_config(draft.bases.get(draft.rng.choice(TEXT)))
    unknown = {"architectures": ["FooForCausalLM"], "model_type": "foo"}
    removed = {"architectures": ["MptForCausalLM"], "model_type": "mpt"}
    source = draft.rng.choice((other, other, unknown, removed))
    if draft.rng.random() < 0.2:
        source = {"architectures": draft.rng.choice(([], None, "LlamaForCausalLM", [3]))}
    for name in draft.rng.sample(("architectures", "model_type"), draft.rng.choice((1, 2))):
        if name in source:
            config[name] = source[name]
            draft.notes.append(f"{name}={source[name]}")
    write_config(directory, config)


def draw_processor(draft: Draft) -> None:
    """Damage or remove the processor of a model with vision or hearing."""
    directory = draft.copy_base(*MEDIA, *MEDIA, "whisper")
    name = PROCESSOR if (directory / PROCESSOR).exists() else OLD_PROCESSOR
    path = directory / name
    match draft.choose(("removed", "old name", "empty", "no class", "foreign", "value", "size")):
        case "removed":
            path.unlink()
        case "old name":
            path.rename(directory / ({PROCESSOR, OLD_PROCESSOR} - {name}).pop())
        case "empty":
            path.write_text(draft.choose(("", "{}", "[]", "{")))
        case "size":
            config = read_config(directory)
            draft.change_value(draft.rng.choice(_parts(config)[1:] or [config]))
            write_config(directory, config)
        case change:
            config = read_config(directory, name)
            _change_processor(draft, config, change)
            write_config(directory, config, name)
    if draft.rng.random() < 0.2:
        value = draft.rng.choice(('{"image": 0}', '{"image": 2}', '{"audio": 1}', '{"foo": 1}'))
        draft.settings["LIMIT_MM_PER_PROMPT"] = value


def _change_processor(draft: Draft, config: dict[str, Any], change: str) -> None:
    if change == "no class":
        for part in _parts(config):
            for key in [key for key in part if key.endswith(("_type", "_class"))]:
                del part[key]
    elif change == "foreign":
        key = draft.choose(("processor_class", "image_processor_type"))
        classes = ("FooProcessor", "LlavaProcessor", "CLIPImageProcessor", "WhisperProcessor")
        config[key] = draft.choose(classes)
    else:
        draft.change_value(draft.rng.choice(_parts(config)))


def _parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a configuration and its nested parts."""
    return [config, *(part for part in config.values() if isinstance(part, dict) and part)]


OWN_CONFIG = """\
from transformers import {family}Config

class OwnConfig({family}Config):
    model_type = "own"
"""
OWN_MODEL = """\
from transformers import {family}ForCausalLM
from .configuration_own import OwnConfig

class OwnForCausalLM({family}ForCausalLM):
    config_class = OwnConfig
"""
OWN_TOKENIZER = """\
from transformers import PreTrainedTokenizerFast

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
# Lines that a model's own code may contain.
BUGS = ("", "", "", "import a_missing_package\n", "raise ValueError('own')\n", "def\n")


def draw_remote_code(draft: Draft) -> None:
    """Let the directory name code of its own, which it may lack."""
    directory = draft.copy_base("llama", "qwen3", "mistral")
    family = {"llama": "Llama", "qwen3": "Qwen3", "mistral": "Mistral"}[directory.name]
    config = read_config(directory)
    maps = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    if draft.is_chosen(0.2, "no own config"):
        del maps["AutoConfig"]
    elif draft.is_chosen(0.2, "no own model"):
        del maps["AutoModelForCausalLM"]
    config["auto_map"] = maps
    if draft.is_chosen(0.7, "own type"):
        config["model_type"] = "own"
    if draft.is_chosen(0.6, "own architecture"):
        config["architectures"] = ["OwnForCausalLM"]
    write_config(directory, config)
    _write_own_code(draft, directory, family)
    if draft.is_chosen(0.3, "own tokenizer"):
        auto = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
        changed = {"auto_map": auto, "tokenizer_class": "OwnTokenizer"}
        tokenizer = {**read_config(directory, TOKENIZER_CONFIG), **changed}
        write_config(directory, tokenizer, TOKENIZER_CONFIG)
    if draft.rng.random() < 0.6:
        draft.settings["TRUST_REMOTE_CODE"] = "1"


def _write_own_code(draft: Draft, directory: Path, family: str) -> None:
    files = {
        "configuration_own.py": OWN_CONFIG,
        "modeling_own.py": OWN_MODEL,
        "tokenization_own.py": OWN_TOKENIZER,
    }
    for name, code in files.items():
        if draft.rng.random() < 0.85:
            bug = draft.rng.choice(BUGS)
            draft.notes += [f"{name}: {bug.strip()}"] * bool(bug)
            (directory / name).write_text(bug + code.format(family=family))
        else:
            draft.notes.append(f"no {name}")
