"""Estimates of the memory of a training, based on the files of the model."""

import json
import os
from pathlib import Path

import pytest

from worker.errors import InvalidInput
from worker.fine_tunes.memory import (
    DeviceMemory,
    MemoryInUse,
    check_memory,
    device_memory,
    needed_bytes,
)
from worker.fine_tunes.spec import Lora, RowsFile, Spec
from worker.process.memory import GIB
from worker.settings.environment import trainer_environ

# Sizes of a Llama model with 8 billion weights.
LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256}
LLAMA |= {"intermediate_size": 14336}
WEIGHTS = 8_030_000_000


def spec_at(path: Path, config: object = LLAMA, **changes: object) -> Spec:
    """Write a model's configuration and a sparse file of weights; return a training's spec."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "BF16", "shape": [WEIGHTS], "data_offsets": [0, 2 * WEIGHTS]}
    header = json.dumps({"w": tensor}).encode()
    with (path / "model.safetensors").open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.truncate(8 + len(header) + 2 * WEIGHTS)
    fixed = {
        "model": path,
        "tokenizer": path,
        "max_length": 4096,
        "training": RowsFile(path=path),
    }
    return Spec.model_validate({**fixed, **changes})


@pytest.mark.parametrize(
    ("device", "free", "total", "error", "message"),
    [
        # On a CPU, weights have 32 bits.
        ("cpu", 16, 24, InvalidInput, r"at least 3\d\.\d GiB .* 24\.0 GiB\. .*--train"),
        ("cpu", 16, 64, MemoryInUse, r"16\.0 GiB left\."),
        ("cuda", 15, 15, InvalidInput, "this GPU has"),
    ],
)
def test_a_training_that_does_not_fit_is_refused_with_sizes_and_advice(
    tmp_path: Path, device: str, free: int, total: int, error: type[InvalidInput], message: str
) -> None:
    spec = spec_at(tmp_path, device=device)
    with pytest.raises(InvalidInput, match=message) as exc_info:
        check_memory(spec, DeviceMemory(free * GIB, total * GIB))
    assert type(exc_info.value) is error
    # With enough memory, the training is accepted.
    enough = {"cpu": 64, "cuda": 24}[device] * GIB
    check_memory(spec, DeviceMemory(enough, enough))


def test_a_larger_rank_and_longer_rows_need_more_memory(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{}, {"lora": Lora(r=256)}, {"max_length": 8}]
    default, large_rank, short_rows = (
        needed_bytes(spec_at(tmp_path, **change)) or 0 for change in changes
    )
    # 671 million parameters instead of 42 million, each with a gradient and two averages.
    assert 9 * GIB < large_rank - default < 11 * GIB
    assert 0 < short_rows < default
    # Only the text model of a vision model counts.
    assert needed_bytes(spec_at(tmp_path / "vision", {"text_config": LLAMA})) == default


@pytest.mark.parametrize(
    "config", [{}, [], {"text_config": 5}, {**LLAMA, "hidden_size": "wide"}, "cut off"], ids=str
)
def test_a_model_with_incomplete_files_is_not_refused(tmp_path: Path, config: object) -> None:
    spec = spec_at(tmp_path, LLAMA if config == "cut off" else config)
    if config == "cut off":
        os.truncate(tmp_path / "model.safetensors", 100)
    assert needed_bytes(spec) is None
    check_memory(spec, DeviceMemory(1, 1))


# Output of nvidia-smi, which must be called for the first visible GPU.
FIRST_GPU = '[ "$1 $2" = "-i 3" ] && echo "1024, 2048"'


@pytest.mark.parametrize(
    ("script", "visible", "expected"),
    [
        (None, None, None),
        ('echo "20480, 81920\n81559, 81920"', None, DeviceMemory(20 * GIB, 80 * GIB)),
        ("echo '[N/A]'", None, None),
        ("exit 9", None, None),
        (FIRST_GPU, "3,1", DeviceMemory(GIB, 2 * GIB)),
    ],
)
def test_the_memory_of_a_gpu_is_read_with_nvidia_smi(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    visible: str | None,
    expected: DeviceMemory | None,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_memory("cuda") == expected
    # The trainer orders GPUs in the same way.
    assert trainer_environ(wandb=False)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    cpu_memory = device_memory("cpu")
    assert cpu_memory
    assert GIB // 4 < cpu_memory.free < cpu_memory.total
