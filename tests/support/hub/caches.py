"""Small model repositories, and caches in the hub's layout, for tests of the store."""

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants

from support.hub.server import Hub, blob, commit, hub, paths
from worker.store import Found, NotFound, Places, Unavailable, Wanted, resolve
from worker.store.download import obtain
from worker.store.manifest import write
from worker.store.places import repository_folder

NAME = "org/name"
WANTED = Wanted(NAME)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
# Bytes of the tensor in a file of weights.
DATA = 40_000


def safetensors(seed: int = 0, data: int = DATA) -> bytes:
    """Return the content of a safetensors file with one random tensor of so many bytes."""
    tensor = {"dtype": "F32", "shape": [data // 4], "data_offsets": [0, data]}
    header = json.dumps({"a": tensor}).encode()
    content = random.Random(seed).randbytes(data)
    return len(header).to_bytes(8, "little") + header + content


def model(folder: Path, weights: Sequence[str] = (WEIGHTS,)) -> Path:
    """Create a model's repository, with an index if there are several files of weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["Llama"]}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    for seed, name in enumerate(weights):
        (folder / name).write_bytes(safetensors(seed))
    if len(weights) > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict(enumerate(weights))}))
    return folder


def cached(
    cache: Path, source: Path, name: str = NAME, revision: str = "main", listed: bool = False
) -> Path:
    """Put a repository into a cache, as huggingface_hub does; return its snapshot.

    Args:
        cache: in the hub's layout.
        source: holds the files.
        name: of the repository.
        revision: a branch or tag that points to it.
        listed: whether to add the manifest that a worker writes.
    """
    folder, sha = repository_folder(cache, name), commit(source)
    snapshot = folder / "snapshots" / sha
    for path in paths(source):
        kept = folder / "blobs" / blob(source / path)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes((source / path).read_bytes())
        link = snapshot / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(kept, link.parent))
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(sha)
    if listed:
        write(folder, sha, {path: (source / path).stat().st_size for path in paths(source)})
    return snapshot


def isolate_hub_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's cache and token from huggingface_hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def found(wanted: Wanted, places: Places) -> Found:
    """Resolve something that is on the disk."""
    result = resolve(wanted, places)
    assert isinstance(result, Found), result.passed
    return result


def passed(wanted: Wanted, places: Places) -> str:
    """Resolve something that is not on the disk; return why the places were passed over."""
    result = resolve(wanted, places)
    assert isinstance(result, NotFound), result
    assert result.wanted == wanted
    return "; ".join(result.passed)


class On(NamedTuple):
    """A hub with a repository, and an empty volume."""

    hub: Hub
    source: Path
    places: Places

    @property
    def folder(self) -> Path:
        return repository_folder(self.places.volume, NAME)

    def obtain(self, wanted: Wanted = WANTED, newest: bool = False) -> Found:
        return obtain(wanted, self.places, self.hub.endpoint, newest)

    def refused(self, wanted: Wanted = WANTED, newest: bool = False) -> Unavailable:
        with pytest.raises(Unavailable) as raised:
            self.obtain(wanted, newest)
        return raised.value

    def add(self, names: Sequence[str]) -> None:
        for name in names:
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"content of {name}")


@contextmanager
def hub_and_volume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    """Run a hub with a repository, next to an empty volume; retries come after 10 ms."""
    isolate_hub_library(folder, monkeypatch)
    monkeypatch.setattr("worker.store.hub.PAUSES_S", (0.01, 0.01, 0.01))
    source = model(folder / "source")
    with hub() as running:
        running.add(NAME, source)
        yield On(running, source, Places(folder / "volume", folder / "platform"))


def same(found: Found, source: Path) -> None:
    """Check that what was downloaded has the source's content."""
    for path in paths(found.place):
        assert (found.place / path).read_bytes() == (source / path).read_bytes(), path
