"""Whether a training fits into the memory, by what a model's files say of it."""

import json
import os
from pathlib import Path

import pytest

from trainer.spec import Data, Lora, Spec
from worker.errors import InvalidInput
from worker.fine_tunes.memory import Memory, MemoryTaken, check_memory, memory, needed_bytes
from worker.process.estimates import GIB
from worker.settings.environment import trainers_environ

# Of a Llama of 8 billion weights.
LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256}
LLAMA |= {"intermediate_size": 14336}
WEIGHTS = 8_030_000_000


def spec_at(place: Path, config: object = LLAMA, **changes: object) -> Spec:
    """Write a model's configuration, and its weights as a file of holes; return a training."""
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "BF16", "shape": [WEIGHTS], "data_offsets": [0, 2 * WEIGHTS]}
    header = json.dumps({"w": tensor}).encode()
    with (place / "model.safetensors").open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.truncate(8 + len(header) + 2 * WEIGHTS)
    fixed = {"model": place, "tokenizer": place, "max_length": 4096, "training": Data(path=place)}
    return Spec.model_validate({**fixed, **changes})


@pytest.mark.parametrize(
    ("device", "free", "total", "error", "message"),
    [
        # In 32 bits on a CPU.
        ("cpu", 16, 24, InvalidInput, r"at least 3\d\.\d GiB .* 24\.0 GiB\. .*--train"),
        ("cpu", 16, 64, MemoryTaken, r"16\.0 GiB left\."),
        ("cuda", 15, 15, InvalidInput, "this GPU has"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_sizes_and_what_to_change(
    tmp_path: Path, device: str, free: int, total: int, error: type[InvalidInput], message: str
) -> None:
    spec = spec_at(tmp_path, device=device)
    with pytest.raises(InvalidInput, match=message) as caught:
        check_memory(spec, Memory(free * GIB, total * GIB))
    assert type(caught.value) is error
    # With enough of it, it is not.
    enough = {"cpu": 64, "cuda": 24}[device] * GIB
    check_memory(spec, Memory(enough, enough))


def test_a_larger_rank_and_longer_rows_need_more(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{}, {"lora": Lora(r=256)}, {"max_length": 8}]
    plain, ranked, short = (needed_bytes(spec_at(tmp_path, **one)) or 0 for one in changes)
    # 671 million numbers in place of 42, each with its gradient and two averages.
    assert 9 * GIB < ranked - plain < 11 * GIB
    assert 0 < short < plain
    # Of a model that also sees, the text model counts.
    assert needed_bytes(spec_at(tmp_path / "seeing", {"text_config": LLAMA})) == plain


@pytest.mark.parametrize(
    "config", [{}, [], {"text_config": 5}, {**LLAMA, "hidden_size": "wide"}, "cut off"], ids=str
)
def test_a_model_that_says_too_little_is_not_refused(tmp_path: Path, config: object) -> None:
    spec = spec_at(tmp_path, LLAMA if config == "cut off" else config)
    if config == "cut off":
        os.truncate(tmp_path / "model.safetensors", 100)
    assert needed_bytes(spec) is None
    check_memory(spec, Memory(1, 1))


# As the driver's tool answers where the worker sees these GPUs; of several, the first counts.
FIRST = '[ "$1 $2" = "-i 3" ] && echo "1024, 2048"'


@pytest.mark.parametrize(
    ("script", "visible", "found"),
    [
        (None, None, None),
        ('echo "20480, 81920\n81559, 81920"', None, Memory(20 * GIB, 80 * GIB)),
        ("echo '[N/A]'", None, None),
        ("exit 9", None, None),
        (FIRST, "3,1", Memory(GIB, 2 * GIB)),
    ],
)
def test_the_memory_of_a_gpu_is_asked_of_the_drivers_tool(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    visible: str | None,
    found: Memory | None,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert memory("cuda") == found
    # The first is the trainer's first, too.
    assert trainers_environ(wandb=False)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    here = memory("cpu")
    assert here
    assert GIB // 4 < here.free < here.total
