"""Counts the elements of the weights of the models in ``presets.json``, by the models' own classes.

``python builder/elements.py`` prints them by the types that the files of weights have. Transformers
builds each model by its configuration, without memory behind the weights.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from recipes import known
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

# What is quantized where experts are MXFP4: half a byte an element, and a byte for each 32.
_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def elements(config: Mapping[str, Any]) -> dict[str, int]:
    """Count the elements of a model's weights.

    Args:
        config: of its config.json, what sizes depend on.
    """
    generates = any(name.endswith("CausalLM") for name in config["architectures"])
    built: Any = AutoModelForCausalLM if generates else AutoModel
    skipped = ("model_type", "quantization_config")
    rest = {key: value for key, value in config.items() if key not in skipped}
    made = AutoConfig.for_model(config["model_type"], **rest)
    with torch.device("meta"):
        model = built.from_config(made)
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    if "quantization_config" not in config:
        kind = {"bfloat16": "BF16", "float32": "F32"}[config["torch_dtype"]]
        return {kind: sum(sizes.values())}
    experts = sum(size for name, size in sizes.items() if name.endswith(_EXPERTS))
    return {"BF16": sum(sizes.values()) - experts, "U8": experts // 2 + experts // 32}


if __name__ == "__main__":
    print(json.dumps({name: elements(model["config"]) for name, model in known().items()}))
