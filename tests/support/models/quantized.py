"""Quantization blocks of config.json as tools write them, and weights in these formats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.models.damaged import WEIGHTS, change_config

GROUP = 32  # weights of one column that share a scale
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}

# Blocks, by the tool or the format that they belong to.
BLOCKS: Mapping[str, Any] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
    },
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8 in blocks": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_INT8, "strategy": "channel"},
                "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
            }
        },
    },
    "packed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_INT8, "num_bits": 4, "strategy": "group", "group_size": GROUP},
            }
        },
    },
    "bitsandbytes, 4 bits": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16",
    },
    "bitsandbytes, 8 bits": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "torchao": {
        "quant_method": "torchao",
        "quant_type": {
            "default": {"_type": "Int8WeightOnlyConfig", "_version": 1, "_data": {}},
        },
    },
    "quark": {"quant_method": "quark", "export": {"kv_cache_group": []}},
    "modelopt": {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt"},
    },
    "hqq": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}},
    "aqlm": {"quant_method": "aqlm", "in_group_size": 8, "num_codebooks": 1},
    "bitnet": {"quant_method": "bitnet", "linear_class": "bitlinear"},
    "eetq": {"quant_method": "eetq", "weights": "int8"},
    "quanto": {"quant_method": "quanto", "weights": "int8"},
    "higgs": {"quant_method": "higgs", "bits": 4},
    "auto-round": {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": True},
    "exl2": {"quant_method": "exl2", "bits": 4.0},
    "an unknown method": {"quant_method": "foo", "bits": 4},
    "no method": {"bits": 4, "group_size": GROUP},
    "an empty block": {},
    "a list": ["gptq"],
    "a string": "gptq",
}
# Formats whose weights ``quantize_weights`` writes.
WRITABLE = ("gptq", "awq", "fp8", "int8", "packed")


def _is_linear(name: str, tensor: torch.Tensor) -> bool:
    is_other = "embed" in name or name.startswith("lm_head")
    return name.endswith(".weight") and tensor.dim() == 2 and not is_other


def _quantize(form: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors that replace a weight, by the end of their names, with random values."""
    rows, columns = tensor.shape
    groups = max(1, columns // GROUP)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(0, 1 << 30, shape, dtype=torch.int32)

    match form:
        case "gptq":
            return {
                "qweight": integers(columns // 8, rows),
                "qzeros": integers(groups, rows // 8),
                "scales": torch.rand(groups, rows).half() / 100,
                "g_idx": torch.arange(columns, dtype=torch.int32) // GROUP,
            }
        case "awq":
            return {
                "qweight": integers(columns, rows // 8),
                "qzeros": integers(groups, rows // 8),
                "scales": torch.rand(groups, rows).half() / 100,
            }
        case "fp8":
            scale = tensor.abs().max().float() / 448
            return {
                "weight": (tensor / scale).to(torch.float8_e4m3fn),
                "weight_scale": scale.reshape(1),
            }
        case "int8":
            scale = tensor.abs().amax(1, keepdim=True).float() / 127
            return {"weight": (tensor / scale).round().to(torch.int8), "weight_scale": scale}
        case _:
            return {
                "weight_packed": integers(rows, columns // 8),
                "weight_scale": torch.rand(rows, groups).bfloat16() / 100,
                "weight_shape": torch.tensor([rows, columns]),
            }


def quantize_weights(folder: Path, form: str) -> None:
    """Replace the weights of a model, and add the block of their format to config.json."""
    torch.manual_seed(1)
    quantized = dict[str, torch.Tensor]()
    for name, tensor in load_file(folder / WEIGHTS).items():
        if _is_linear(name, tensor):
            stem = name.removesuffix("weight")
            quantized |= {f"{stem}{end}": new for end, new in _quantize(form, tensor).items()}
        else:
            quantized[name] = tensor
    (folder / WEIGHTS).unlink()
    save_file(quantized, folder / WEIGHTS, {"format": "pt"})
    change_config(folder, quantization_config=BLOCKS[form])
