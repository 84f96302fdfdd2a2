"""Twelve well-known models as their repositories have them: config.json, and headers of weights.

No weight is stored: a file of headers is made as long as the weights would be, with a hole in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from support.models.configs import LLAMA_3_1_8B

# Types of the format, and bytes of an element.
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}

_LLAMA = LLAMA_3_1_8B | {
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
_QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "vocab_size": 152064,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
_FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_FLOAT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_FLOAT8, "strategy": "token", "dynamic": True},
        }
    },
}
_FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
_NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": _FLOAT4, "input_activations": _FLOAT4}
    },
}


@dataclass(frozen=True)
class Recorded:
    """A model.

    Attributes:
        name: of its repository, or of the one that it is made after.
        config: its config.json, but for what no size depends on.
        tensors: elements of its weights, by the format's names of types.
        token: bytes of a token in vLLM's cache, counted by hand; of layers that keep all of them.
        settings: beside the model's name.
    """

    name: str
    config: dict[str, Any]
    tensors: Mapping[str, int]
    token: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """Bytes of its weights."""
        return sum(SIZES[kind] * count for kind, count in self.tensors.items())

    def write(self, folder: Path) -> Path:
        """Write the model's directory."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        header: dict[str, Any] = {}
        end = 0
        for kind, count in self.tensors.items():
            begin, end = end, end + count * SIZES[kind]
            header[kind] = {"dtype": kind, "shape": [count], "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        return folder


def _linear(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return inputs and outputs of the linear layers in all of a model's blocks."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    blocks: int = config["num_hidden_layers"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    block = [(width, width), (width, keys), (width, keys), (width, width)]
    block += [(width, inner), (width, inner), (inner, width)]
    return block * blocks


def _awq(config: Mapping[str, Any], elements: int) -> dict[str, int]:
    """Count elements where linear layers have 4 bits, and a scale and a zero for each 128."""
    layers = _linear(config)
    linear, groups = sum(map(prod, layers)), sum(prod(layer) // 128 for layer in layers)
    return {"I32": linear // 8 + groups // 8, "F16": elements - linear + groups}


def _fp8(config: Mapping[str, Any], elements: int) -> dict[str, int]:
    """Count elements where linear layers have 8 bits, and a scale for each output."""
    layers = _linear(config)
    linear, scales = sum(map(prod, layers)), sum(outputs for _, outputs in layers)
    return {"F8_E4M3": linear, "BF16": elements - linear + scales}


def _nvfp4(config: Mapping[str, Any], elements: int) -> dict[str, int]:
    """Count elements where linear layers have 4 bits, a scale for each 16, and two for all."""
    layers = _linear(config)
    linear = sum(map(prod, layers))
    others = {"BF16": elements - linear, "F32": 2 * len(layers)}
    return {"U8": linear // 2, "F8_E4M3": linear // 16, **others}


LLAMA_ELEMENTS, QWEN_ELEMENTS = 8_030_261_248, 7_615_616_512
RECORDED = {
    "dense": Recorded(
        "meta-llama/Llama-2-7b-hf",
        _LLAMA
        | {
            "intermediate_size": 11008,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "torch_dtype": "float16",
        },
        {"F16": 6_738_415_616},
        token=2 * 32 * 32 * 128 * 2,
    ),
    "GQA": Recorded(
        "meta-llama/Llama-3.1-8B-Instruct", _LLAMA, {"BF16": LLAMA_ELEMENTS}, 2 * 32 * 8 * 128 * 2
    ),
    "MLA": Recorded(
        "deepseek-ai/DeepSeek-V2-Lite",
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_shared_experts": 2,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "max_position_embeddings": 163840,
            "vocab_size": 102400,
            "rope_theta": 10000,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
            },
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        {"BF16": 15_706_484_224},
        token=27 * (512 + 64) * 2,
    ),
    "MoE": Recorded(
        "Qwen/Qwen3-30B-A3B",
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "head_dim": 128,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "max_position_embeddings": 40960,
            "vocab_size": 151936,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        {"BF16": 30_532_122_624},
        token=2 * 48 * 4 * 128 * 2,
    ),
    # One of six layers keeps all tokens.
    "sliding window": Recorded(
        "google/gemma-3-1b-it",
        {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "head_dim": 256,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "query_pre_attn_scalar": 256,
            "max_position_embeddings": 32768,
            "vocab_size": 262144,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
            "hidden_activation": "gelu_pytorch_tanh",
            "torch_dtype": "bfloat16",
        },
        {"BF16": 999_885_952},
        token=2 * 4 * 1 * 256 * 2,
    ),
    "AWQ": Recorded(
        "Qwen/Qwen2.5-7B-Instruct-AWQ",
        _QWEN
        | {
            "quantization_config": {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 128,
                "version": "gemm",
                "zero_point": True,
            }
        },
        _awq(_QWEN, QWEN_ELEMENTS),
        token=2 * 28 * 4 * 128 * 2,
    ),
    "FP8": Recorded(
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
        _LLAMA | {"quantization_config": _FP8},
        _fp8(_LLAMA, LLAMA_ELEMENTS),
        token=2 * 32 * 8 * 128 * 2,
    ),
    # Its cache has 8 bits, too.
    "NVFP4": Recorded(
        "nvidia/Llama-3.1-8B-Instruct-FP4",
        _LLAMA | {"quantization_config": _NVFP4},
        _nvfp4(_LLAMA, LLAMA_ELEMENTS),
        token=2 * 32 * 8 * 128,
    ),
    "vision": Recorded(
        "HuggingFaceM4/Idefics3-8B-Llama3",
        {
            "architectures": ["Idefics3ForConditionalGeneration"],
            "model_type": "idefics3",
            "image_token_id": 128257,
            "pad_token_id": 128002,
            "scale_factor": 2,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "text_config": _LLAMA
            | {"vocab_size": 128259, "pad_token_id": 128002, "rope_scaling": None},
            "vision_config": {
                "model_type": "idefics3_vision",
                "hidden_size": 1152,
                "image_size": 364,
                "intermediate_size": 4304,
                "num_attention_heads": 16,
                "num_hidden_layers": 27,
                "patch_size": 14,
            },
        },
        {"BF16": 8_462_086_384},
        token=2 * 32 * 8 * 128 * 2,
    ),
    "embedder": Recorded(
        "BAAI/bge-small-en-v1.5",
        {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "vocab_size": 30522,
            "torch_dtype": "float32",
        },
        {"F32": 33_360_000},
        token=0,
        settings={"RUNNER": "pooling"},
    ),
    # Four of 40 layers are attention; the others keep a state.
    "hybrid": Recorded(
        "ibm-granite/granite-4.0-h-tiny",
        {
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "hidden_size": 1536,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_hidden_layers": 40,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "layer_types": [
                "attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)
            ],
            "mamba_chunk_size": 256,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 48,
            "mamba_proj_bias": False,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "attention_multiplier": 0.0078125,
            "embedding_multiplier": 12,
            "logits_scaling": 6,
            "residual_multiplier": 0.22,
            "position_embedding_type": "nope",
            "max_position_embeddings": 131072,
            "vocab_size": 100352,
            "rope_theta": 10000,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        {"BF16": 6_939_037_248},
        token=2 * 4 * 4 * 128 * 2,
    ),
    "with adapters": Recorded(
        "meta-llama/Llama-3.1-8B-Instruct",
        _LLAMA,
        {"BF16": LLAMA_ELEMENTS},
        token=2 * 32 * 8 * 128 * 2,
        settings={"ENABLE_LORA": "1", "MAX_LORA_RANK": "64", "MAX_LORAS": "4"},
    ),
}
