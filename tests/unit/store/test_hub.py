"""Descriptions of models on the hub, with the real huggingface_hub; nothing is downloaded."""

import json
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download
from support.hub.caches import ARTIFACT, INDEX, NAME, SHARDS, WEIGHTS, HubAndVolume, fill_cache
from support.hub.server import MEMBER, commit_id

from worker.store import Artifact, File, ModelUnavailable, Origin, Reason, Snapshot
from worker.store.hub import find_snapshot, list_files


def find(store: HubAndVolume, artifact: Artifact = ARTIFACT) -> Snapshot:
    folder = store.source.with_name("small files")
    folder.mkdir(exist_ok=True)
    return find_snapshot(artifact, store.places, folder, store.hub.endpoint)


def refusal_reason(store: HubAndVolume) -> Reason:
    with pytest.raises(ModelUnavailable) as raised:
        find(store)
    return raised.value.reason


def names_of(files: Iterable[File]) -> list[str]:
    return [file.name for file in files]


def names_of_directory(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def test_a_model_on_the_hub_is_described_by_its_listing_and_headers(store: HubAndVolume) -> None:
    store.add_files(["pytorch_model.bin", "onnx/model.onnx", "own.py"])
    found = find(store)
    assert (found.origin, found.commit) == (Origin.DOWNLOAD, commit_id(store.source))
    assert names_of(found.weights) == [WEIGHTS]
    assert names_of(found.others) == ["config.json", "tokenizer.json"]
    assert found.not_downloaded == found.weights + found.others
    assert (found.config["architectures"], found.gated) == (["Llama"], False)
    assert found.tensors == find(store, Artifact(str(store.source))).tensors == {"F32": 10_000}
    assert names_of_directory(found.small_files) == names_of(found.others)
    ranges = [range_ for _, path, range_ in store.hub.requests if path.endswith(".safetensors")]
    assert ranges == ["bytes=0-100000"]
    assert "own.py" in names_of(find(store, replace(ARTIFACT, code=True)).others)
    # A description leaves nothing in the cache.
    assert not store.places.volume.exists()


@pytest.mark.parametrize("lost", ["model-lost.safetensors", "../../x.safetensors"])
def test_shards_in_the_index_must_be_inside_the_repository(store: HubAndVolume, lost: str) -> None:
    (store.source / SHARDS[0]).write_bytes((store.source / WEIGHTS).read_bytes())
    (store.source / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": lost}}))
    refusal = find(store).refusal
    assert isinstance(refusal, ModelUnavailable)
    assert (refusal.reason, refusal.detail) == (Reason.NO_FILES, lost)


def test_a_repository_with_only_an_adapter_is_not_a_model(store: HubAndVolume) -> None:
    (store.source / WEIGHTS).rename(store.source / "adapter_model.safetensors")
    (store.source / "config.json").unlink()
    (store.source / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert refusal_reason(store) is store.obtain_error().reason is Reason.ADAPTER


def test_the_hub_is_not_queried_for_a_model_in_the_cache(store: HubAndVolume) -> None:
    fill_cache(store.places.volume, store.source)
    found = find(store)
    assert (found.origin, found.commit) == (Origin.VOLUME, commit_id(store.source))
    assert (found.not_downloaded, found.tensors) == ((), {"F32": 10_000})
    assert found.skipped == (f"platform's cache: it does not have {NAME}",)
    assert store.hub.requests == []


def test_only_files_that_the_cache_has_of_no_commit_are_to_be_downloaded(
    store: HubAndVolume,
) -> None:
    where: Any = {"endpoint": store.hub.endpoint, "cache_dir": store.places.volume}
    snapshot_download(NAME, **where, allow_patterns="*.safetensors")
    found = find(store)
    assert (found.origin, found.skipped[1]) == (Origin.DOWNLOAD, "volume: config.json is missing")
    assert names_of(found.not_downloaded) == ["config.json", "tokenizer.json"]
    snapshot_download(NAME, **where)
    (store.source / "config.json").write_text('{"architectures": ["New"]}')
    found = find(store, replace(ARTIFACT, revision=commit_id(store.source)))
    assert names_of(found.not_downloaded) == ["config.json"]
    assert found.config == {"architectures": ["New"]}


def test_an_incomplete_cache_is_not_used_if_the_hub_fails(store: HubAndVolume) -> None:
    (fill_cache(store.places.volume, store.source) / WEIGHTS).unlink()
    store.hub.status = 503
    assert refusal_reason(store) is Reason.HUB_FAILS


def test_a_gated_model_is_refused_without_access(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.hub.repositories[NAME].gated = True
    assert refusal_reason(store) is Reason.TOKEN_MISSING
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    assert find(store).gated


@pytest.mark.parametrize("sha", ["../../etc", "main", ""])
def test_a_commit_that_is_no_hash_is_refused(sha: str) -> None:
    info = Namespace(id=NAME, sha=sha, siblings=[], gated=False)
    api: Any = Namespace(endpoint="http://hub", model_info=lambda *_, **__: info)
    with pytest.raises(ValueError, match="no hashes"):
        list_files(api, ARTIFACT)
