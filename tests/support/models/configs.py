"""config.json of well-known models, and copies of models with changes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Config = dict[str, Any]

_CONFIGS: dict[str, Config] = json.loads(Path(__file__).with_suffix(".json").read_text())


def merge_base(config: Mapping[str, Any]) -> Config:
    """Return a configuration with all keys of the configuration that it names as its base."""
    merged: Config = {
        key: merge_base(value) if isinstance(value, dict) else value
        for key, value in config.items()
    }
    return merge_base(_CONFIGS[str(merged.pop("base"))]) | merged if "base" in merged else merged


LLAMA_3_1_8B = _CONFIGS["LLAMA_3_1_8B"]
# Number of elements of its weights, all in bfloat16.
LLAMA_3_1_8B_ELEMENTS = 8_030_261_248
QWEN_2_5_7B = _CONFIGS["QWEN_2_5_7B"]
DEEPSEEK_V3 = _CONFIGS["DEEPSEEK_V3"]
# Every second layer attends only to the last 128 tokens.
GPT_OSS_20B = _CONFIGS["GPT_OSS_20B"]
PHI_3_MINI_128K = _CONFIGS["PHI_3_MINI_128K"]
WHISPER = _CONFIGS["WHISPER"]
# vLLM has sparse attention only on GPUs.
SPARSE = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
# Tokens of a long context. The demo model has learned nothing at that length, and answers with
# arbitrary sentences.
CONTEXT = 131_072
# Reads all of a conversation like the template of a model, but renders only the lengths of its
# parts and the beginnings of its texts, so that long sessions are computed fast.
SHORT_TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson | length }} {% endfor %}
{%- for message in messages %}{{ message.role }} {{ message | tojson | length }}
{%- if message.content is string %} {{ message.content[:8] }}{% endif %}
{%- for call in message.tool_calls or [] %} {{ call.function.name | length }}{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def copy_model(model: Path, folder: Path, **config: object) -> Path:
    """Copy a model and change its configuration; return the copy's directory."""
    shutil.copytree(model, folder)
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**before, **config}))
    return folder


def copy_with_long_context(model: Path, copy: Path, template: str = "") -> Path:
    """Copy a model to a new folder; return the folder. The template replaces the model's own."""
    shutil.copytree(model, copy)
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        written = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**written, key: CONTEXT}))
    if template:
        (copy / "chat_template.jinja").write_text(template)
    return copy
