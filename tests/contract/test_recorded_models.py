"""The recorded headers of weights, by the models' own code: transformers builds them unquantized.

Linear layers are then divided as the formats say: AWQ's 4 bits in words of 32, FP8, and NVFP4.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from support.tables.models import RECORDED, SIZES, Recorded
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

Tensors = Iterator[tuple[str, int]]
_CLASSES = {"vision": AutoModelForImageTextToText, "embedder": AutoModel}


def awq(outputs: int, inputs: int) -> Tensors:
    groups = inputs // 128
    yield "I32", inputs * (outputs // 8)
    yield "I32", groups * (outputs // 8)
    yield "F16", groups * outputs


def fp8(outputs: int, inputs: int) -> Tensors:
    yield "F8_E4M3", outputs * inputs
    yield "BF16", outputs


def nvfp4(outputs: int, inputs: int) -> Tensors:
    yield "U8", outputs * (inputs // 2)
    yield "F8_E4M3", outputs * (inputs // 16)
    yield "F32", 1
    yield "F32", 1


_FORMATS: dict[str, Callable[[int, int], Tensors]] = {"AWQ": awq, "FP8": fp8, "NVFP4": nvfp4}
_KINDS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "U8": torch.uint8,
}


def elements(name: str, model: Recorded, folder: Path) -> dict[str, int]:
    """Count the elements of a model's tensors, by type; those that are tied are stored once."""
    config = {key: value for key, value in model.config.items() if key != "quantization_config"}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        code: Any = _CLASSES.get(name, AutoModelForCausalLM)
        built = code.from_config(AutoConfig.from_pretrained(folder))
    layers = _FORMATS.get(name)
    count: Counter[str] = Counter()
    quantized = set()
    for path, layer in built.named_modules():
        if layers and isinstance(layer, torch.nn.Linear) and path != "lm_head":
            quantized.add(f"{path}.weight")
            for kind, number in layers(*layer.weight.shape):
                count[kind] += number
    plain = [tensor for path, tensor in built.named_parameters() if path not in quantized]
    count[_KINDS[config["torch_dtype"]]] += sum(tensor.numel() for tensor in plain)
    return dict(count)


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_elements_are_those_of_the_models_own_code(name: str, tmp_path: Path) -> None:
    model = RECORDED[name]
    assert dict(model.tensors) == elements(name, model, tmp_path / "config")


@pytest.mark.parametrize("kind", SIZES)
def test_elements_are_as_large_as_the_formats_own_library_stores_them(kind: str) -> None:
    stored = save({"tensor": torch.zeros(64, dtype=_DTYPES[kind])})
    header = int.from_bytes(stored[:8], "little")
    assert f'"dtype":"{kind}"'.encode() in stored[8 : 8 + header]
    assert len(stored) - 8 - header == 64 * SIZES[kind]


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_file_is_as_long_as_its_weights(name: str, tmp_path: Path) -> None:
    file = RECORDED[name].write(tmp_path / "model") / "model.safetensors"
    with file.open("rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
    assert file.stat().st_size - 8 - header == RECORDED[name].stored
