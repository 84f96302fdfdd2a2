"""Whether a training fits into the memory, by what a model's files say of it."""

import json
from pathlib import Path

import pytest

from worker.errors import InvalidInput
from worker.fine_tunes.estimate import (
    GIB,
    Memory,
    MemoryTaken,
    check_memory,
    memory,
    needed_bytes,
)
from worker.settings.environment import trainers_environ
from worker.trainer.spec import Data, Lora, Spec

# Of a Llama of 8 billion weights.
LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
WEIGHTS = 8_030_000_000


def model_at(place: Path, config: object = LLAMA, weights: int = WEIGHTS) -> Path:
    """Write a model's configuration, and its weights as a file that is mostly holes."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "BF16", "shape": [weights], "data_offsets": [0, 2 * weights]}
    header = json.dumps({"w": tensor}).encode()
    with (place / "model.safetensors").open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.truncate(8 + len(header) + 2 * weights)
    return place


def spec_of(model: Path, **changes: object) -> Spec:
    rows = Data(path=model)
    values = {"model": model, "tokenizer": model, "max_length": 4096, "training": rows, **changes}
    return Spec.model_validate(values)


def test_what_does_not_fit_is_refused_with_the_sizes_and_what_to_change(tmp_path: Path) -> None:
    spec = spec_of(model_at(tmp_path / "model"))
    # In 32 bits on a CPU.
    with pytest.raises(InvalidInput, match=r"at least 3\d\.\d GiB .* 24\.0 GiB\. .*--train") as no:
        check_memory(spec, Memory(16 * GIB, 24 * GIB))
    assert not isinstance(no.value, MemoryTaken)
    check_memory(spec, Memory(64 * GIB, 64 * GIB))


def test_what_others_have_for_the_moment_is_told_apart(tmp_path: Path) -> None:
    spec = spec_of(model_at(tmp_path / "model"))
    with pytest.raises(MemoryTaken, match=r"16\.0 GiB left\."):
        check_memory(spec, Memory(16 * GIB, 64 * GIB))


def test_on_a_gpu_the_weights_take_half(tmp_path: Path) -> None:
    spec = spec_of(model_at(tmp_path / "model"), device="cuda")
    check_memory(spec, Memory(24 * GIB, 24 * GIB))
    with pytest.raises(InvalidInput, match="this GPU has"):
        check_memory(spec, Memory(15 * GIB, 15 * GIB))


def test_a_larger_rank_and_longer_rows_need_more(tmp_path: Path) -> None:
    model = model_at(tmp_path / "model")
    plain = needed_bytes(spec_of(model))
    ranked = needed_bytes(spec_of(model, lora=Lora(r=256)))
    short = needed_bytes(spec_of(model, max_length=8))
    assert plain is not None
    assert ranked is not None
    assert short is not None
    # 671 million numbers in place of 42, each with its gradient and two averages.
    assert 9 * GIB < ranked - plain < 11 * GIB
    assert short < plain


@pytest.mark.parametrize(
    "config", [{}, [], {"text_config": 5}, {**LLAMA, "hidden_size": "wide"}], ids=str
)
def test_a_model_that_says_too_little_is_not_refused(tmp_path: Path, config: object) -> None:
    check_memory(spec_of(model_at(tmp_path / "model", config)), Memory(1, 1))


def test_the_text_model_counts_of_one_that_also_sees(tmp_path: Path) -> None:
    one, other = model_at(tmp_path / "a"), model_at(tmp_path / "b", {"text_config": LLAMA})
    assert needed_bytes(spec_of(one)) == needed_bytes(spec_of(other))


def test_weights_that_are_cut_off_are_not_counted(tmp_path: Path) -> None:
    model = model_at(tmp_path / "model")
    with (model / "model.safetensors").open("r+b") as opened:
        opened.truncate(100)
    assert needed_bytes(spec_of(model)) is None


def test_the_memory_of_this_machine_is_known() -> None:
    found = memory("cpu")
    assert found is not None
    assert GIB // 4 < found.free < found.total


def test_the_memory_of_a_gpu_is_asked_of_the_drivers_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory("cuda") is None
    for script, found in (
        ('echo "20480, 81920\n81559, 81920"', Memory(20 * GIB, 80 * GIB)),
        ("echo '[N/A]'", None),
        ("exit 9", None),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        assert memory("cuda") == found


def test_of_several_gpus_the_one_counts_that_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1 $2" = "-i 3" ] && echo "1024, 2048"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert memory("cuda") == Memory(GIB, 2 * GIB)
    # And not the fastest is its first.
    assert trainers_environ(wandb=False)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
