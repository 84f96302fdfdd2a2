"""Which files of a model are loaded, and how headers of safetensors files are read."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from worker.store import File, Kind, Origin, Places, Snapshot, Wanted
from worker.store.disk import count_elements
from worker.store.files import (
    inside,
    json_object,
    loadable,
    needed,
    others,
    shards_lacking,
    weights,
)
from worker.store.hub import locate

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
CLUTTER = ["README.md", "onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}})
PARTS = ["transformer/a.safetensors", "vae/b.safetensors", "text_encoder/c.safetensors"]


ALL_FORMATS = ["m.pt", "m.bin", "m.safetensors", "m.gguf"]


@pytest.mark.parametrize(
    ("names", "load_format", "expected"),
    [
        # In one format only.
        (["model.safetensors", "pytorch_model.bin", *CLUTTER], "auto", ["model.safetensors"]),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], "auto", ["pytorch_model.bin"]),
        (["consolidated.safetensors", *SHARDS], "auto", ["consolidated.safetensors"]),
        (["model.pt", "model.gguf"], "auto", ["model.pt"]),
        (["original/consolidated.00.pth", "original/model.safetensors"], "auto", []),
        (CLUTTER, "auto", []),
        # Several parts of a model count where there are none at the root.
        (PARTS, "auto", [PARTS[2], PARTS[0]]),
        ([*PARTS, "model.safetensors"], "auto", ["model.safetensors"]),
        # The format that is asked for wins.
        (ALL_FORMATS, "pt", ["m.pt"]),
        (ALL_FORMATS, "npcache", ["m.bin"]),
        (ALL_FORMATS, "safetensors", ["m.safetensors"]),
        (ALL_FORMATS, "gguf", ["m.gguf"]),
        (ALL_FORMATS, "dummy", []),
    ],
)
def test_these_weights_are_loaded(names: list[str], load_format: str, expected: list[str]) -> None:
    assert weights(names, "", Wanted("m", load_format=load_format)) == expected


@pytest.mark.parametrize("names", [[*SHARDS, "model.safetensors", "a.safetensors"], SHARDS[:1]])
def test_the_weights_are_those_of_the_index(names: list[str]) -> None:
    assert weights(names, INDEX, Wanted("m")) == SHARDS


READ = """chat_template.jinja additional_chat_templates/rag.jinja tokenizer.model.v11 qwen.tiktoken
modules.json 1_Pooling/config.json 2_Dense/model.safetensors 2_Dense/pytorch_model.bin config.json
merges.txt tokenizer.model own.py
""".split()
NOT_READ = """original/params.json onnx/config.json openvino/model.json .git/config.json image.png
checkpoint-500/config.json 2_Dense/onnx/model.safetensors unet/model.safetensors model.safetensors
tokenizer.model.version
""".split()
# What vLLM's models and tokenizers read by name.
BY_NAME = """adapters/retrieval/adapter_model.safetensors whisper-large-v3/model.safetensors
joint_head.safetensors mask_embedding.pt sparse_linear.pt tokenizer.model.v7m1 bpe.codes
""".split()


@pytest.mark.parametrize(
    ("name", "expected"),
    [*((name, [name]) for name in READ), *((name, []) for name in [*NOT_READ, *CLUTTER])],
)
def test_these_files_are_read_beside_the_weights(name: str, expected: list[str]) -> None:
    assert others([name]) == expected


@pytest.mark.parametrize("name", BY_NAME)
def test_what_vllms_models_and_tokenizers_read_by_name_is_needed(name: str) -> None:
    names = ["config.json", "model.safetensors", name]
    assert sorted(needed(names, "", Wanted("o/m"))) == sorted(names)
    assert needed([BY_NAME[0]], "", Wanted("o/m", kind=Kind.TOKENIZER)) == []


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["model.safetensors", "config.json"]),
        ({"kind": Kind.ADAPTER}, ["model.safetensors", "config.json"]),
        ({"kind": Kind.TOKENIZER}, ["config.json"]),
        # Code counts where it may run.
        ({"code": True}, ["model.safetensors", "config.json", "own.py"]),
    ],
)
def test_what_is_needed_depends_on_the_kind(wanted: dict[str, Any], expected: list[str]) -> None:
    names = ["config.json", "model.safetensors", "model.pt", "own.py"]
    assert needed(names, "", Wanted("a/b", **wanted)) == expected


TOKENIZERS = ("tokenizer.json", "vocab.txt", "tekken.json", "spiece.model")


@pytest.mark.parametrize(
    ("name", "wanted", "enough"),
    [
        ("model.safetensors", {}, True),
        ("config.json", {}, False),
        ("config.json", {"load_format": "dummy"}, True),
        ("model.safetensors", {"load_format": "dummy"}, False),
        ("model.safetensors", {"load_format": "pt"}, False),
        *((name, {"kind": Kind.TOKENIZER}, True) for name in TOKENIZERS),
        ("config.json", {"kind": Kind.TOKENIZER}, False),
        ("adapter_model.bin", {"kind": Kind.ADAPTER}, True),
    ],
)
def test_there_is_something_to_load_or_not(name: str, wanted: dict[str, Any], enough: bool) -> None:
    assert loadable([name], Wanted("a/b", **wanted)) is enough


ODD: list[Any] = [{"a": 5}, {"a": ["x"]}, {"a": None}, [], 1]
NO_INDEX = ["", "[1]", "{", "null", "[" * 100_000, *(json.dumps({"weight_map": it}) for it in ODD)]


@pytest.mark.parametrize("text", NO_INDEX, ids=lambda text: text[:20])
def test_what_is_no_index_names_nothing(text: str) -> None:
    assert weights(["b.safetensors"], text, Wanted("m")) == ["b.safetensors"]
    assert "a" not in json_object(text)


@pytest.mark.parametrize(
    ("name", "stays"),
    [("a.json", True), ("a/b.json", True), ("/a", False), ("../a", False), ("a/../../b", False)],
)
def test_a_name_may_not_lead_out_of_its_folder(name: str, stays: bool) -> None:
    assert inside(name) is stays


def test_parts_that_are_not_there_are_named() -> None:
    names = ["a-1-of-3.bin", "b-00002-of-00002.safetensors", "c.bin"]
    lacking = ["a-2-of-3.bin", "a-3-of-3.bin", "b-00001-of-00002.safetensors"]
    assert shards_lacking(names) == lacking


def described(folder: Path) -> Snapshot:
    return locate(Wanted(str(folder)), Places(Path("/no volume"), Path("/no cache")))


@pytest.mark.parametrize("absolute", [False, True])
def test_an_index_does_not_lead_out_of_the_models_directory(tmp_path: Path, absolute: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other.safetensors").write_bytes(b"0" * 99)
    (folder / "model.safetensors").write_bytes(b"0")
    name = str(tmp_path / "other.safetensors") if absolute else "../other.safetensors"
    index = json.dumps({"weight_map": {"a": name}})
    (folder / "model.safetensors.index.json").write_text(index)
    found = described(folder)
    assert (found.weights, found.lacking) == ((), (name,))


@pytest.fixture
def safetensors_file(tmp_path: Path) -> Path:
    """A safetensors file written by safetensors itself, also with a scalar."""
    import torch  # noqa: PLC0415 - only this needs it, and it takes seconds

    tensors = {
        "a": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b": torch.zeros(7),
        "c": torch.tensor(1.0),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_a_directory_is_described_as_it_is(safetensors_file: Path) -> None:
    (safetensors_file.parent / "config.json").write_text('{"model_type": "llama"}')
    found = described(safetensors_file.parent)
    size = safetensors_file.stat().st_size
    assert (found.origin, found.weights) == (Origin.DIRECTORY, (File("model.safetensors", size),))
    assert (found.weights_size, found.config) == (size, {"model_type": "llama"})
    assert found.tensors == {"BF16": 15, "F32": 8}
    assert (found.missing, found.lacking, found.damaged) == ((), (), None)
    assert count_elements([safetensors_file] * 2) == ({"BF16": 30, "F32": 16}, None)


def test_a_directory_shows_which_weights_it_lacks(safetensors_file: Path) -> None:
    safetensors_file.rename(safetensors_file.with_name(SHARDS[0]))
    (safetensors_file.parent / "model.safetensors.index.json").write_text(INDEX)
    found = described(safetensors_file.parent)
    assert ([file.name for file in found.weights], found.lacking) == (SHARDS[:1], (SHARDS[1],))


def with_offsets(offsets: object) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (content, "is no safetensors file")
            for content in (
                *(b"", b"\xff" * 20, b"\2" + b"\0" * 7 + b"[]", b"<html>"),
                *map(with_offsets, ([0], [0, "5"], [0, None], {}, None)),
            )
        ),
        (with_offsets([0, 4]) + b"123", "is cut off"),
    ],
)
def test_a_file_that_is_none_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    counted, damaged = count_elements([tmp_path / "model.safetensors"])
    assert counted is None
    assert damaged == f"model.safetensors {message}"
