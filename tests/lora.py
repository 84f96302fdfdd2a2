"""Makes a LoRA adapter with random weights for a Llama, in PEFT's format."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 4
SCALE = 0.5  # of a weight: large enough that a greedy answer changes


def make_adapter(directory: Path, model: Path, seed: int = 1) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``."""
    config = json.loads((model / "config.json").read_text())
    widths = {
        "q_proj": config["num_attention_heads"] * config["head_dim"],
        "v_proj": config["num_key_value_heads"] * config["head_dim"],
    }
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for target, width in widths.items():
            for part, shape in {"A": (RANK, config["hidden_size"]), "B": (width, RANK)}.items():
                name = f"base_model.model.model.layers.{layer}.self_attn.{target}.lora_{part}"
                weights[f"{name}.weight"] = SCALE * torch.randn(shape, generator=random)
    directory.mkdir(parents=True)
    save_file(weights, directory / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(widths),
    }
    (directory / "adapter_config.json").write_text(json.dumps(adapter))
