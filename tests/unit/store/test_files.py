"""Which files of a model are loaded, and how headers of safetensors files are read."""

import json
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import save_file

from worker.store import Kind, Origin, Places, Wanted
from worker.store.files import (
    files_in_index,
    inside,
    json_object,
    loadable,
    needed,
    others,
    shards_lacking,
    weights,
)
from worker.store.headers import Unreadable, count_elements
from worker.store.hub import locate

NOWHERE = Places(Path("/no volume"), Path("/no cache"))
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
CLUTTER = ["README.md", "onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"]
INDEX = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.safetensors", "pytorch_model.bin", *CLUTTER], ["model.safetensors"]),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], ["pytorch_model.bin"]),
        (["consolidated.safetensors", *SHARDS], ["consolidated.safetensors"]),
        (["model.pt", "model.gguf"], ["model.pt"]),
        (["original/consolidated.00.pth", "original/model.safetensors"], []),
        (CLUTTER, []),
    ],
)
def test_weights_count_in_one_format_only(names: list[str], expected: list[str]) -> None:
    assert weights(names) == expected


@pytest.mark.parametrize(
    ("load_format", "expected"),
    [("pt", "m.pt"), ("npcache", "m.bin"), ("safetensors", "m.safetensors"), ("gguf", "m.gguf")],
)
def test_a_format_that_is_asked_for_wins(load_format: str, expected: str) -> None:
    names = ["m.pt", "m.bin", "m.safetensors", "m.gguf"]
    assert weights(names, load_format=load_format) == [expected]


def test_no_weights_are_loaded_for_a_dummy() -> None:
    assert weights(["model.safetensors"], load_format="dummy") == []


def test_what_is_not_in_the_index_is_not_loaded() -> None:
    names = [*SHARDS, "model.safetensors", "adapter.safetensors"]
    assert weights(names, files_in_index(json.dumps(INDEX))) == SHARDS


def test_what_only_the_index_names_is_named() -> None:
    assert weights(SHARDS[:1], files_in_index(json.dumps(INDEX))) == SHARDS


def test_configurations_and_tokenizers_are_loaded_beside() -> None:
    files = ["config.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "own.py"]
    assert others([*files, *CLUTTER, "model.safetensors"]) == sorted(files)


@pytest.mark.parametrize(
    "name",
    [
        "chat_template.jinja",
        "additional_chat_templates/rag.jinja",
        "tokenizer.model.v11",
        "qwen.tiktoken",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
    ],
)
def test_what_is_read_beside_the_weights_counts(name: str) -> None:
    assert others([name]) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "original/params.json",
        "onnx/config.json",
        "openvino/model.json",
        ".git/config.json",
        "checkpoint-500/config.json",
        "2_Dense/onnx/model.safetensors",
        "unet/model.safetensors",
        "tokenizer.model.version",
        "image.png",
    ],
)
def test_what_nothing_reads_does_not_count(name: str) -> None:
    assert others([name]) == []


@pytest.mark.parametrize("code", [True, False])
def test_code_counts_where_it_may_run(code: bool) -> None:
    assert others(["modeling_own.py", "config.json"], code)[1:] == ["modeling_own.py"] * code


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.MODEL, ["model.safetensors", "config.json"]),
        (Kind.ADAPTER, ["model.safetensors", "config.json"]),
        (Kind.TOKENIZER, ["config.json"]),
    ],
)
def test_what_is_needed_depends_on_what_is_loaded(kind: Kind, expected: list[str]) -> None:
    names = ["config.json", "model.safetensors", "model.pt", "own.py"]
    assert needed(names, [], Wanted("a/b", kind=kind)) == expected


@pytest.mark.parametrize(
    ("name", "wanted", "enough"),
    [
        ("model.safetensors", Wanted("a/b"), True),
        ("config.json", Wanted("a/b"), False),
        ("config.json", Wanted("a/b", load_format="dummy"), True),
        ("model.safetensors", Wanted("a/b", load_format="dummy"), False),
        ("model.safetensors", Wanted("a/b", load_format="pt"), False),
        ("tokenizer.json", Wanted("a/b", kind=Kind.TOKENIZER), True),
        ("vocab.txt", Wanted("a/b", kind=Kind.TOKENIZER), True),
        ("tekken.json", Wanted("a/b", kind=Kind.TOKENIZER), True),
        ("spiece.model", Wanted("a/b", kind=Kind.TOKENIZER), True),
        ("config.json", Wanted("a/b", kind=Kind.TOKENIZER), False),
        ("adapter_model.bin", Wanted("a/b", kind=Kind.ADAPTER), True),
    ],
)
def test_there_is_something_to_load_or_not(name: str, wanted: Wanted, enough: bool) -> None:
    assert loadable([name], wanted) is enough


@pytest.mark.parametrize("text", ["", "[1]", "{", "null"])
def test_what_is_no_json_object_says_nothing(text: str) -> None:
    assert json_object(text) == {}
    assert list(files_in_index(text)) == []


@pytest.mark.parametrize("weight_map", [{"a": 5}, {"a": ["x"]}, {"a": None}, [], "x", 1])
def test_an_index_without_names_names_nothing(weight_map: object) -> None:
    assert list(files_in_index(json.dumps({"weight_map": weight_map}))) == []


def test_json_nested_too_deep_says_nothing() -> None:
    assert json_object("[" * 100_000) == {}


@pytest.mark.parametrize(
    ("name", "stays"),
    [("a.json", True), ("a/b.json", True), ("/a", False), ("../a", False), ("a/../../b", False)],
)
def test_a_name_may_not_lead_out_of_its_folder(name: str, stays: bool) -> None:
    assert inside(name) is stays


@pytest.mark.parametrize("absolute", [False, True])
def test_an_index_does_not_lead_out_of_the_models_directory(tmp_path: Path, absolute: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other.safetensors").write_bytes(b"0" * 99)
    (folder / "model.safetensors").write_bytes(b"0")
    name = str(tmp_path / "other.safetensors") if absolute else "../other.safetensors"
    index = json.dumps({"weight_map": {"a": name}})
    (folder / "model.safetensors.index.json").write_text(index)
    found = locate(Wanted(str(folder)), NOWHERE)
    assert (found.weights, found.lacking) == ((), (name,))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A safetensors file written by safetensors itself, also with a scalar."""
    import torch  # noqa: PLC0415 - only this needs it, and it takes seconds

    held = {
        "a": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b": torch.zeros(7),
        "c": torch.zeros(2, 2, dtype=torch.int32),
        "d": torch.tensor(1.0),
    }
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_elements_are_counted_by_type(file: Path) -> None:
    assert count_elements([file, file]) == Counter({"BF16": 30, "F32": 16, "I32": 8})


def test_a_file_that_is_cut_off_is_reported(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Unreadable, match=r"model.safetensors is cut off"):
        count_elements([file])


@pytest.mark.parametrize(
    "content", [b"", b"\1", b"\xff" * 20, b"\2" + b"\0" * 7 + b"[]", b"<html>"]
)
def test_a_file_that_is_something_else_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(Unreadable, match="no safetensors file"):
        count_elements([tmp_path / "model.safetensors"])


@pytest.mark.parametrize("offsets", [[], [0], [0, "5"], [0, None], "ab", {}, None])
def test_a_header_of_odd_offsets_is_reported(tmp_path: Path, offsets: object) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": offsets}
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Unreadable, match="no safetensors file"):
        count_elements([tmp_path / "model.safetensors"])


def test_a_directory_is_described_as_it_is(file: Path) -> None:
    (file.parent / "config.json").write_text('{"model_type": "llama"}')
    found = locate(Wanted(str(file.parent)), NOWHERE)
    assert found.origin is Origin.DIRECTORY
    assert [file.name for file in found.weights] == ["model.safetensors"]
    assert found.weights_size == file.stat().st_size
    assert found.config == {"model_type": "llama"}
    assert found.tensors == {"BF16": 15, "F32": 8, "I32": 4}
    assert (found.missing, found.lacking, found.damaged) == ((), (), None)


def test_a_directory_shows_which_weights_it_lacks(file: Path) -> None:
    file.rename(file.with_name(SHARDS[0]))
    (file.parent / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    found = locate(Wanted(str(file.parent)), NOWHERE)
    assert found.lacking == (SHARDS[1],)
    assert [file.name for file in found.weights] == [SHARDS[0]]


@pytest.mark.parametrize(
    "name",
    [
        "adapters/retrieval/adapter_model.safetensors",
        "whisper-large-v3/model.safetensors",
        "joint_head.safetensors",
        "mask_embedding.pt",
        "sparse_linear.pt",
        "tokenizer.model.v7m1",
        "bpe.codes",
    ],
)
def test_what_vllms_models_and_tokenizers_read_by_name_is_needed(name: str) -> None:
    names = ["config.json", "model.safetensors", name]
    assert sorted(needed(names, ["model.safetensors"], Wanted("o/m"))) == sorted(names)


def test_an_adapter_of_a_tokenizers_repository_is_not_needed() -> None:
    names = ["tokenizer.json", "adapters/retrieval/adapter_model.safetensors"]
    assert needed(names, (), Wanted("o/m", kind=Kind.TOKENIZER)) == ["tokenizer.json"]


def test_weights_of_several_parts_of_a_model_count_where_there_are_none_at_the_root() -> None:
    names = ["transformer/a.safetensors", "vae/b.safetensors", "text_encoder/c.safetensors"]
    assert weights(names) == ["text_encoder/c.safetensors", "transformer/a.safetensors"]
    assert weights([*names, "model.safetensors"]) == ["model.safetensors"]


def test_parts_that_are_not_there_are_named() -> None:
    assert shards_lacking(["a-1-of-3.bin", "b-00002-of-00002.safetensors", "c.bin"]) == [
        "a-2-of-3.bin",
        "a-3-of-3.bin",
        "b-00001-of-00002.safetensors",
    ]
