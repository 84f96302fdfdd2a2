"""Counts the elements of the weights of the models in ``presets.json``, by data type.

``python builder/elements.py`` prints them by the data types in the files of weights. Transformers
builds each model from its configuration, with the model's own class and without memory for weights.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from recipes import load_models
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

# The weights that are quantized if experts are MXFP4: half a byte per element, plus a byte for each
# 32.
_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def count_elements(config: Mapping[str, Any]) -> dict[str, int]:
    """Count the elements of a model's weights.

    Args:
        config: The keys of its config.json that determine sizes.
    """
    is_generative = any(name.endswith("CausalLM") for name in config["architectures"])
    model_class: Any = AutoModelForCausalLM if is_generative else AutoModel
    skipped = ("model_type", "quantization_config")
    rest = {key: value for key, value in config.items() if key not in skipped}
    built_config = AutoConfig.for_model(config["model_type"], **rest)
    with torch.device("meta"):
        model = model_class.from_config(built_config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    if "quantization_config" not in config:
        kind = {"bfloat16": "BF16", "float32": "F32"}[config["torch_dtype"]]
        return {kind: sum(sizes.values())}
    experts = sum(size for name, size in sizes.items() if name.endswith(_EXPERTS))
    return {"BF16": sum(sizes.values()) - experts, "U8": experts // 2 + experts // 32}


if __name__ == "__main__":
    print(
        json.dumps({name: count_elements(model["config"]) for name, model in load_models().items()})
    )
