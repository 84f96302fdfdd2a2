"""The files of a model that are loaded."""

import json
from typing import Any

import pytest

from worker.store import Artifact, ArtifactKind
from worker.store.files import (
    has_required_files,
    is_inside_folder,
    missing_shards,
    needed_files,
    non_weight_files,
    parse_json_object,
    weight_files,
)

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
CLUTTER = ["README.md", "onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}})
PARTS = ["transformer/a.safetensors", "vae/b.safetensors", "text_encoder/c.safetensors"]


ALL_FORMATS = ["m.pt", "m.bin", "m.safetensors", "m.gguf"]


@pytest.mark.parametrize(
    ("names", "load_format", "expected"),
    [
        # Only one format is loaded.
        (["model.safetensors", "pytorch_model.bin", *CLUTTER], "auto", ["model.safetensors"]),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], "auto", ["pytorch_model.bin"]),
        (["consolidated.safetensors", *SHARDS], "auto", ["consolidated.safetensors"]),
        (["model.pt", "model.gguf"], "auto", ["model.pt"]),
        (["original/consolidated.00.pth", "original/model.safetensors"], "auto", []),
        (CLUTTER, "auto", []),
        # Parts of a model in folders are loaded if there are no weights at the root.
        (PARTS, "auto", [PARTS[2], PARTS[0]]),
        ([*PARTS, "model.safetensors"], "auto", ["model.safetensors"]),
        # The requested format overrides the default order.
        (ALL_FORMATS, "pt", ["m.pt"]),
        (ALL_FORMATS, "npcache", ["m.bin"]),
        (ALL_FORMATS, "safetensors", ["m.safetensors"]),
        (ALL_FORMATS, "gguf", ["m.gguf"]),
        (ALL_FORMATS, "dummy", []),
    ],
)
def test_files_of_weights_are_chosen_by_format(
    names: list[str], load_format: str, expected: list[str]
) -> None:
    assert weight_files(names, "", Artifact("m", load_format=load_format)) == expected


@pytest.mark.parametrize("names", [[*SHARDS, "model.safetensors", "a.safetensors"], SHARDS[:1]])
def test_the_weights_are_the_files_in_the_index(names: list[str]) -> None:
    assert weight_files(names, INDEX, Artifact("m")) == SHARDS


READ = """chat_template.jinja additional_chat_templates/rag.jinja tokenizer.model.v11 qwen.tiktoken
modules.json 1_Pooling/config.json 2_Dense/model.safetensors 2_Dense/pytorch_model.bin config.json
merges.txt tokenizer.model own.py
""".split()
NOT_READ = """original/params.json onnx/config.json openvino/model.json .git/config.json image.png
checkpoint-500/config.json 2_Dense/onnx/model.safetensors unet/model.safetensors model.safetensors
tokenizer.model.version
""".split()
# Files that vLLM's models and tokenizers read by name.
BY_NAME = """adapters/retrieval/adapter_model.safetensors whisper-large-v3/model.safetensors
joint_head.safetensors mask_embedding.pt sparse_linear.pt tokenizer.model.v7m1 bpe.codes
""".split()


@pytest.mark.parametrize(
    ("name", "expected"),
    [*((name, [name]) for name in READ), *((name, []) for name in [*NOT_READ, *CLUTTER])],
)
def test_other_needed_files_are_chosen_by_name(name: str, expected: list[str]) -> None:
    assert non_weight_files([name]) == expected


@pytest.mark.parametrize("name", BY_NAME)
def test_files_that_vllm_reads_by_name_are_needed(name: str) -> None:
    names = ["config.json", "model.safetensors", name]
    assert sorted(needed_files(names, "", Artifact("o/m"))) == sorted(names)
    assert needed_files([BY_NAME[0]], "", Artifact("o/m", kind=ArtifactKind.TOKENIZER)) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["model.safetensors", "config.json"]),
        ({"kind": ArtifactKind.ADAPTER}, ["model.safetensors", "config.json"]),
        ({"kind": ArtifactKind.TOKENIZER}, ["config.json"]),
        # Code is needed if it may run.
        ({"code": True}, ["model.safetensors", "config.json", "own.py"]),
    ],
)
def test_the_needed_files_depend_on_the_kind_of_artifact(
    fields: dict[str, Any], expected: list[str]
) -> None:
    names = ["config.json", "model.safetensors", "model.pt", "own.py"]
    assert needed_files(names, "", Artifact("a/b", **fields)) == expected


TOKENIZERS = ("tokenizer.json", "vocab.txt", "tekken.json", "spiece.model", "qwen.tiktoken")


@pytest.mark.parametrize(
    ("name", "fields", "is_loadable"),
    [
        ("model.safetensors", {}, True),
        ("config.json", {}, False),
        ("config.json", {"load_format": "dummy"}, True),
        ("model.safetensors", {"load_format": "dummy"}, False),
        ("model.safetensors", {"load_format": "pt"}, False),
        *((name, {"kind": ArtifactKind.TOKENIZER}, True) for name in TOKENIZERS),
        ("config.json", {"kind": ArtifactKind.TOKENIZER}, False),
        ("adapter_model.bin", {"kind": ArtifactKind.ADAPTER}, True),
    ],
)
def test_an_artifact_can_be_loaded_if_it_has_a_file_of_its_kind(
    name: str, fields: dict[str, Any], is_loadable: bool
) -> None:
    assert has_required_files([name], Artifact("a/b", **fields)) is is_loadable


ODD: list[Any] = [{"a": 5}, {"a": ["x"]}, {"a": None}, [], 1]
NO_INDEX = ["", "[1]", "{", "null", "[" * 100_000, *(json.dumps({"weight_map": it}) for it in ODD)]


@pytest.mark.parametrize("text", NO_INDEX, ids=lambda text: text[:20])
def test_a_malformed_index_is_ignored(text: str) -> None:
    assert weight_files(["b.safetensors"], text, Artifact("m")) == ["b.safetensors"]
    assert "a" not in parse_json_object(text)


@pytest.mark.parametrize(
    ("name", "is_inside"),
    [("a.json", True), ("a/b.json", True), ("/a", False), ("../a", False), ("a/../../b", False)],
)
def test_a_file_name_must_not_lead_out_of_its_folder(name: str, is_inside: bool) -> None:
    assert is_inside_folder(name) is is_inside


def test_missing_shards_are_listed() -> None:
    names = ["a-1-of-3.bin", "b-00002-of-00002.safetensors", "c.bin"]
    missing = ["a-2-of-3.bin", "a-3-of-3.bin", "b-00001-of-00002.safetensors"]
    assert missing_shards(names) == missing
