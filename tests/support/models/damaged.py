"""Copies of a model with damage that no worker could load."""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt")
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"

Damage = Callable[[Path, random.Random], object]


def copy_damaged(model: Path, folder: Path, damage: str, seed: int = 0) -> Path:
    """Copy a model and damage the copy; return the copy's directory."""
    shutil.copytree(model, folder)
    DAMAGES[damage](folder, random.Random(seed))
    return folder


def change_config(folder: Path, **changes: object) -> None:
    """Change keys of config.json; None removes a key."""
    path = folder / CONFIG
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def _truncate(folder: Path, rng: random.Random) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: rng.randrange(len(content))])


def _cut_text(name: str) -> Damage:
    def cut(folder: Path, rng: random.Random) -> None:
        text = (folder / name).read_text()
        (folder / name).write_text(text[: rng.randrange(1, len(text) - 2)])

    return cut


def _change_shape(folder: Path, rng: random.Random) -> None:
    key = rng.choice(("intermediate_size", "vocab_size", "hidden_size", "num_hidden_layers"))
    value = json.loads((folder / CONFIG).read_text())[key]
    change_config(folder, **{key: rng.choice((value // 2, value * 2))})


def _change_tensor(change: Callable[[str, Any], dict[str, Any]]) -> Damage:
    """Replace one of the tensors with those that ``change`` returns for its name and value."""

    def replace(folder: Path, rng: random.Random) -> None:
        tensors = load_file(folder / WEIGHTS)
        name = rng.choice(sorted(tensors))
        tensors |= change(name, tensors.pop(name))
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return replace


def _lose_shard(folder: Path, rng: random.Random) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names, shards = sorted(tensors), [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    parts = [{name: tensors[name] for name in names[part::2]} for part in (0, 1)]
    for shard, part in zip(shards, parts, strict=True):
        save_file(part, folder / shard, {"format": "pt"})
    shard_of = {name: shard for shard, part in zip(shards, parts, strict=True) for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    (folder / rng.choice(shards)).unlink()


def _write_bin(folder: Path, rng: random.Random) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + rng.randbytes(5_000))


def _remove_tokenizer(folder: Path, _: random.Random) -> None:
    for name in TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)


def _replace_by_adapter(folder: Path, _: random.Random) -> None:
    (folder / CONFIG).rename(folder / "adapter_config.json")
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    change = {"base_model_name_or_path": "org/base", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(change))


def _empty_vocabulary(folder: Path, _: random.Random) -> None:
    (folder / TOKENIZER_FILES[0]).unlink()
    settings = {"tokenizer_class": "Qwen2Tokenizer"}
    (folder / TOKENIZER_FILES[1]).write_text(json.dumps(settings))


def _set_config(**changes: object) -> Damage:
    return lambda folder, _: change_config(folder, **changes)


DAMAGES: Mapping[str, Damage] = {
    "cut weights": _truncate,
    "garbage instead of weights": lambda folder, rng: (folder / WEIGHTS).write_bytes(
        rng.randbytes(rng.randrange(1, 10_000))
    ),
    "no weights": lambda folder, _: (folder / WEIGHTS).unlink(),
    "weights of another shape": _change_shape,
    "a missing tensor": _change_tensor(lambda *_: {}),
    "a tensor of another name": _change_tensor(lambda name, value: {f"{name}.extra": value}),
    "a tensor of another shape": _change_tensor(
        lambda name, value: {name: np.concatenate([value, value])}
    ),
    "a missing shard": _lose_shard,
    "a broken checkpoint of torch": _write_bin,
    "a broken config.json": _cut_text(CONFIG),
    "no config.json": lambda folder, _: (folder / CONFIG).unlink(),
    "no tokenizer": _remove_tokenizer,
    "a broken tokenizer": _cut_text(TOKENIZER_FILES[0]),
    "an unknown architecture": _set_config(architectures=["FooForCausalLM"]),
    "an unknown type of model": _set_config(model_type="foo", architectures=["FooForCausalLM"]),
    # Weights of 12 TB, which are never read: the memory is allocated first.
    "weights larger than the memory": _set_config(
        num_hidden_layers=80, intermediate_size=200_000_000, hidden_size=8192
    ),
    "an adapter": _replace_by_adapter,
    "a pointer of Git LFS": lambda folder, _: (folder / WEIGHTS).write_text(LFS_POINTER),
    "an empty vocabulary": _empty_vocabulary,
    "a vocabulary larger than the model's": _set_config(vocab_size=8),
}
