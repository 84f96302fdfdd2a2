"""Tests of the values that vLLM reads from a model's config.json, and of its refusals."""

import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from support.doctor import CPU, arguments
from support.models import configs as models
from support.releases import needs_vllm

from worker.engine.model_config import ModelShape, read_model_shape
from worker.errors import StartFailed

Config = dict[str, Any]
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
DYNAMIC = {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}
PLAIN_LLAMA = {**models.LLAMA_3_1_8B, "rope_scaling": None, "max_position_embeddings": 8192}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the two-second pause before vLLM retries to parse a malformed configuration."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


def read_shape(tmp_path: Path, config: Config, **settings: str) -> ModelShape:
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = arguments(CPU, MODEL=str(tmp_path), **settings)
    return read_model_shape(engine, config.get("architectures", []))


def default_config(architecture: str, model_type: str) -> Config:
    """Return a configuration with the defaults of its class."""
    return {"architectures": [architecture], "model_type": model_type}


@pytest.mark.parametrize(
    ("config", "length", "longest"),
    [
        (models.LLAMA_3_1_8B, 131072, 131072),
        (models.QWEN_2_5_7B, 32768, 32768),
        pytest.param(
            *(models.QWEN_2_5_7B | YARN, 32768, 32768),
            marks=needs_vllm("0.30", "vLLM multiplied the length by YaRN's factor"),
        ),
        (models.QWEN_2_5_7B | LINEAR, 131072, 131072),
        pytest.param(
            *(models.QWEN_2_5_7B | DYNAMIC, 65536, 65536),
            marks=pytest.mark.skipif(
                Version(metadata.version("transformers")) < Version("5.19"),
                reason="this transformers can't read parameters of RoPE by the type of layer",
            ),
        ),
        # vLLM uses the long scaling only on demand, because it makes answers to short prompts
        # worse.
        (models.PHI_3_MINI_128K, 4096, 131072),
        (default_config("GPT2LMHeadModel", "gpt2") | {"n_positions": 512}, 512, 512),
        (PLAIN_LLAMA | {"seq_length": 4096}, 4096, 4096),
        (PLAIN_LLAMA | {"model_max_length": 131072}, 131072, 131072),
        (default_config("BloomForCausalLM", "bloom"), 2048, None),
    ],
)
def test_the_maximum_length_is_the_one_that_vllm_accepts(
    tmp_path: Path, config: Config, length: int, longest: int | None
) -> None:
    found = read_shape(tmp_path, config)
    assert (found.default_length, found.max_length) == (length, longest)
    assert bool(found.length_key) == (longest is not None)


def test_a_length_beyond_the_models_own_does_not_change_the_shape(tmp_path: Path) -> None:
    config = models.LLAMA_3_1_8B
    assert read_shape(tmp_path, config, MAX_MODEL_LEN="200000") == read_shape(tmp_path, config)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "unheard-of"}, "unheard-of"),
        ({**models.QWEN_2_5_7B, "rope_scaling": {"type": "linear"}}, "factor"),
        ({**models.LLAMA_3_1_8B, "num_key_value_heads": [8, 4]}, "num_key_value_heads"),
        ({**models.LLAMA_3_1_8B, "architectures": ["BigBirdForCausalLM"]}, "BigBirdForCausalLM"),
        ({**models.LLAMA_3_1_8B, "quantization_config": {"quant_method": "x"}}, "method: x"),
    ],
)
def test_a_refusal_by_vllm_is_reported_in_one_line(
    tmp_path: Path, config: Config, reason: str
) -> None:
    with pytest.raises(StartFailed) as caught:
        read_shape(tmp_path, config)
    (message,) = caught.value.message.splitlines()
    assert reason in message
    assert "validation error" not in message
    assert len(message) <= 400
