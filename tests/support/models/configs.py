"""config.json of well-known models, as far as memory and context length depend on it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Config = dict[str, Any]

_CONFIGS: dict[str, Config] = json.loads(Path(__file__).with_suffix(".json").read_text())


def complete(config: Mapping[str, Any]) -> Config:
    """Return a configuration with all that it has from the one that it names as its base."""
    own: Config = {
        key: complete(value) if isinstance(value, dict) else value for key, value in config.items()
    }
    return complete(_CONFIGS[str(own.pop("base"))]) | own if "base" in own else own


def copied(model: Path, folder: Path, **config: object) -> Path:
    """Copy a model, with changes to its configuration; return the copy's directory."""
    shutil.copytree(model, folder)
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**before, **config}))
    return folder


LLAMA_3_1_8B = _CONFIGS["LLAMA_3_1_8B"]
# Elements of its weights, all in bfloat16.
LLAMA_3_1_8B_ELEMENTS = 8_030_261_248
QWEN_2_5_7B = _CONFIGS["QWEN_2_5_7B"]
DEEPSEEK_V3 = _CONFIGS["DEEPSEEK_V3"]
# Every second layer sees the last 128 tokens only.
GPT_OSS_20B = _CONFIGS["GPT_OSS_20B"]
MISTRAL_7B_V0_1 = _CONFIGS["MISTRAL_7B_V0_1"]
PHI_3_MINI_128K = _CONFIGS["PHI_3_MINI_128K"]
FALCON_7B = _CONFIGS["FALCON_7B"]
# Three of four layers keep a state instead of a cache.
QWEN_3_NEXT = _CONFIGS["QWEN_3_NEXT"]
WHISPER = _CONFIGS["WHISPER"]


def hearing(text: Config) -> Config:
    """Return the configuration of an audio model with this language model in it."""
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "text_config": text,
    }
