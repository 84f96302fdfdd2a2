"""Small model repositories, and caches in the hub's layout, for tests of the store."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants

from support.hub.server import Hub, blob_id, commit_id, relative_paths
from worker.store import (
    Artifact,
    ArtifactLocation,
    ModelUnavailable,
    Places,
    UnlocatedArtifact,
    resolve_on_disk,
)
from worker.store.download import obtain_artifact
from worker.store.manifest import write
from worker.store.places import repository_folder

NAME = "org/name"
ARTIFACT = Artifact(NAME)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
# Size in bytes of the tensor in a file of weights.
DATA = 40_000


def safetensors(seed: int = 0, data: int = DATA) -> bytes:
    """Return the content of a safetensors file with one random tensor of ``data`` bytes."""
    tensor = {"dtype": "F32", "shape": [data // 4], "data_offsets": [0, data]}
    header = json.dumps({"a": tensor}).encode()
    content = random.Random(seed).randbytes(data)
    return len(header).to_bytes(8, "little") + header + content


def make_model(folder: Path, weights: Sequence[str] = (WEIGHTS,)) -> Path:
    """Create a model's repository, with an index if there are several files of weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["Llama"]}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    for seed, name in enumerate(weights):
        (folder / name).write_bytes(safetensors(seed))
    if len(weights) > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict(enumerate(weights))}))
    return folder


def fill_cache(
    cache: Path, source: Path, name: str = NAME, revision: str = "main", with_manifest: bool = False
) -> Path:
    """Put a repository into a cache, as huggingface_hub does; return its snapshot.

    ``revision`` is a branch or tag that points to the snapshot. The manifest is the one that a
    worker writes.
    """
    folder, sha = repository_folder(cache, name), commit_id(source)
    snapshot = folder / "snapshots" / sha
    for path in relative_paths(source):
        stored = folder / "blobs" / blob_id(source / path)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes((source / path).read_bytes())
        link = snapshot / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(stored, link.parent))
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(sha)
    if with_manifest:
        write(
            folder, sha, {path: (source / path).stat().st_size for path in relative_paths(source)}
        )
    return snapshot


def isolate_hub_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent huggingface_hub from using the developer's cache and token."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def locate(artifact: Artifact, places: Places) -> ArtifactLocation:
    """Return the location of an artifact that is on the disk."""
    result = resolve_on_disk(artifact, places)
    assert isinstance(result, ArtifactLocation), result.skipped
    return result


def skip_reasons(artifact: Artifact, places: Places) -> str:
    """Return why all places were skipped, for an artifact that is not on the disk."""
    result = resolve_on_disk(artifact, places)
    assert isinstance(result, UnlocatedArtifact), result
    assert result.artifact == artifact
    return "; ".join(result.skipped)


class HubAndVolume(NamedTuple):
    """A hub with a repository, and an empty volume."""

    hub: Hub
    source: Path
    places: Places

    @property
    def folder(self) -> Path:
        return repository_folder(self.places.volume, NAME)

    def obtain(self, artifact: Artifact = ARTIFACT, refresh: bool = False) -> ArtifactLocation:
        return obtain_artifact(artifact, self.places, self.hub.endpoint, refresh)

    def obtain_error(
        self, artifact: Artifact = ARTIFACT, refresh: bool = False
    ) -> ModelUnavailable:
        with pytest.raises(ModelUnavailable) as raised:
            self.obtain(artifact, refresh)
        return raised.value

    def add_files(self, names: Sequence[str]) -> None:
        for name in names:
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"content of {name}")


def assert_same_content(location: ArtifactLocation, source: Path) -> None:
    """Check that the downloaded files have the source's content."""
    for path in relative_paths(location.directory):
        assert (location.directory / path).read_bytes() == (source / path).read_bytes(), path
