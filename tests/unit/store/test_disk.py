"""Models in directories: what they have, and directories that are no model."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file
from support.hub.caches import INDEX, SHARDS, WEIGHTS, make_model
from support.models.damaged import LFS_POINTER

from worker.store import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    File,
    ModelUnavailable,
    Origin,
    Places,
    Reason,
    Snapshot,
)
from worker.store.disk import check_directory, count_elements, weight_paths
from worker.store.hub import find_snapshot

ADAPTER = "adapter_config.json"


def check(directory: Path, setting: str = "MODEL_NAME") -> None:
    artifact = Artifact(str(directory), setting=setting)
    check_directory(ArtifactLocation(artifact, directory, Origin.DIRECTORY))


def refusal(directory: Path, setting: str = "MODEL_NAME") -> ModelUnavailable:
    with pytest.raises(ModelUnavailable) as raised:
        check(directory, setting)
    return raised.value


@pytest.mark.parametrize(
    ("config", "base"),
    [({"base_model_name_or_path": "org/base"}, "org/base"), ({}, "<its base model>")],
)
def test_an_adapter_is_not_a_model(tmp_path: Path, config: dict[str, str], base: str) -> None:
    (tmp_path / ADAPTER).write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").touch()
    found = refusal(tmp_path, setting="EMBEDDING_MODEL_NAME")
    assert found.reason is Reason.ADAPTER
    assert f"set EMBEDDING_MODEL_NAME={base} and EMBEDDING_ENABLE_LORA=1" in found.remedy


def test_a_model_with_an_adapter_next_to_it_is_a_model(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    (folder / ADAPTER).write_text("{}")
    check(folder)


def test_a_pipeline_of_diffusers_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    assert refusal(tmp_path).reason is Reason.PIPELINE


@pytest.mark.parametrize(
    ("name", "proposal"),
    [("models--org--my-model", "org/my-model"), ("cache", "<owner>/<name>")],
)
def test_a_repository_in_a_cache_is_proposed_by_its_name(
    tmp_path: Path, name: str, proposal: str
) -> None:
    for part in ("refs", "snapshots", "blobs"):
        (tmp_path / name / part).mkdir(parents=True)
    assert f"set MODEL_NAME={proposal}" in refusal(tmp_path / name).remedy


def test_a_pointer_of_git_lfs_is_not_a_file_of_weights(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    (folder / WEIGHTS).write_text(LFS_POINTER)
    assert (refusal(folder).reason, refusal(folder).detail) == (Reason.LFS_POINTER, WEIGHTS)


def test_an_index_needs_a_map_of_the_weights(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", SHARDS)
    (folder / INDEX).write_text('{"metadata": {}}')
    assert refusal(folder).detail == f"{INDEX} has no weight_map"


def describe(folder: Path) -> Snapshot:
    places = Places(Path("/no volume"), Path("/no cache"))
    return find_snapshot(Artifact(str(folder)), places, Path("/nowhere"))


@pytest.mark.parametrize("absolute", [False, True])
def test_an_index_does_not_lead_out_of_the_models_directory(tmp_path: Path, absolute: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other.safetensors").write_bytes(b"0" * 99)
    (folder / "model.safetensors").write_bytes(b"0")
    name = str(tmp_path / "other.safetensors") if absolute else "../other.safetensors"
    index = json.dumps({"weight_map": {"a": name}})
    (folder / INDEX).write_text(index)
    assert refusal(folder).detail == f"{name} is missing"


@pytest.fixture
def safetensors_file(tmp_path: Path) -> Path:
    """A file that the safetensors library wrote, with a scalar among its tensors."""
    import torch  # noqa: PLC0415 - only this needs it, and it takes seconds

    tensors = {
        "a": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b": torch.zeros(7),
        "c": torch.tensor(1.0),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_a_directory_is_described_by_its_files(safetensors_file: Path) -> None:
    (safetensors_file.parent / "config.json").write_text('{"model_type": "llama"}')
    found = describe(safetensors_file.parent)
    size = safetensors_file.stat().st_size
    assert (found.origin, found.weights) == (Origin.DIRECTORY, (File("model.safetensors", size),))
    assert (found.weights_size, found.config) == (size, {"model_type": "llama"})
    assert found.tensors == {"BF16": 15, "F32": 8}
    assert found.not_downloaded == ()
    assert count_elements([safetensors_file] * 2) == ({"BF16": 30, "F32": 16}, None)


def safetensors_header(offsets: object) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a safetensors file"),
        (b"<html>", "is not a safetensors file"),
        (safetensors_header([0, None]), "is not a safetensors file"),
        (safetensors_header([0, 4]) + b"123", "is cut off"),
    ],
)
def test_an_invalid_safetensors_file_is_reported(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    counted, damaged = count_elements([tmp_path / "model.safetensors"])
    assert counted is None
    assert damaged == f"model.safetensors {message}"


def test_only_weights_that_the_loader_reads_are_listed_in_its_order(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", SHARDS)
    for other in ("pytorch_model.bin", "original/consolidated.safetensors"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_bytes(bytes(100))
    assert weight_paths(folder, Artifact(str(folder))) == [folder / name for name in SHARDS]
    assert weight_paths(folder, Artifact(str(folder), kind=ArtifactKind.TOKENIZER)) == []
