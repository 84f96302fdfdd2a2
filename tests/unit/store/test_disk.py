"""Directories and repositories that are no model, or whose weights are not theirs."""

import json
from pathlib import Path

import pytest
from support.hub.caches import INDEX, SHARDS, WEIGHTS, make_model
from support.models.damaged import LFS_POINTER

from worker.store import Artifact, ArtifactKind, ArtifactLocation, ModelUnavailable, Origin, Reason
from worker.store.disk import check_directory

ADAPTER = "adapter_config.json"


def refusal(
    directory: Path, kind: ArtifactKind = ArtifactKind.MODEL, setting: str = "MODEL_NAME"
) -> ModelUnavailable:
    artifact = Artifact(str(directory), kind=kind, setting=setting)
    with pytest.raises(ModelUnavailable) as raised:
        check_directory(ArtifactLocation(artifact, directory, Origin.DIRECTORY))
    return raised.value


def accepts(directory: Path, kind: ArtifactKind = ArtifactKind.MODEL) -> bool:
    artifact = Artifact(str(directory), kind=kind)
    check_directory(ArtifactLocation(artifact, directory, Origin.DIRECTORY))
    return True


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
    assert accepts(folder)


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


def test_a_tokenizer_and_an_adapter_need_a_file_of_their_kind(tmp_path: Path) -> None:
    for kind, reason, name in (
        (ArtifactKind.TOKENIZER, Reason.NOT_A_TOKENIZER, "tokenizer.json"),
        (ArtifactKind.ADAPTER, Reason.NOT_AN_ADAPTER, ADAPTER),
    ):
        assert refusal(tmp_path, kind).reason is reason
        (tmp_path / name).touch()
        assert accepts(tmp_path, kind)
