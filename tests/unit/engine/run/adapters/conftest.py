"""A model, and an adapter for it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.models.lora import make_adapter

HIDDEN, LAYERS = 128, 2


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    config |= {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {
        f"model.layers.{layer}.self_attn.{target}.weight": torch.zeros(HIDDEN, HIDDEN)
        for layer in range(LAYERS)
        for target in ("q_proj", "v_proj")
    }
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def adapter(tmp_path: Path, model: Path) -> Path:
    make_adapter(tmp_path / "adapters" / "good", model)
    return tmp_path / "adapters" / "good"
