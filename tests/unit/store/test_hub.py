"""How a model on the hub is described, with the real huggingface_hub; nothing is downloaded."""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, snapshot_download
from support.hub.caches import NAME, isolate_hub_library
from support.hub.server import MEMBER, Hub, Repository, commit
from support.hub.server import hub as running_hub

from worker.store import Kind, Origin, Places, Reason, Snapshot, Unavailable, Wanted
from worker.store.hub import listing, locate

WEIGHTS = "model.safetensors"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as started:
        yield started


class Served:
    """A hub that serves a copy of the demo model, and a cache."""

    def __init__(self, hub: Hub, folder: Path, cache: Path) -> None:
        self.hub, self.folder, self.cache = hub, folder, cache
        self.places = Places(cache, cache.with_name("platform"))

    def find(self, model: str = NAME, revision: str | None = None, **keys: Any) -> Snapshot:
        return locate(Wanted(model, revision, **keys), self.places, self.hub.endpoint)

    def refusal(self, **keys: Any) -> Reason:
        with pytest.raises(Unavailable) as raised:
            self.find(**keys)
        return raised.value.reason

    def download(self, only: str | None = None, without: str | None = None) -> None:
        where: Any = {"endpoint": self.hub.endpoint, "cache_dir": self.cache}
        snapshot_download(NAME, **where, allow_patterns=only, ignore_patterns=without)
        self.hub.requests.clear()

    def put_index(self, *names: str) -> None:
        index = {"weight_map": dict(enumerate(names))}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def served(
    hub: Hub, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    isolate_hub_library(tmp_path, monkeypatch)
    folder = shutil.copytree(demo_model, tmp_path / "repository")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"0" * 1000)
    (folder / "pytorch_model.bin").write_bytes(b"0" * 1000)
    hub.add(NAME, folder)
    hub.requests.clear()
    yield Served(hub, folder, Path(constants.HF_HUB_CACHE))
    hub.status = None


def names_of(files: Any) -> list[str]:
    return [file.name for file in files]


def test_a_model_on_the_hub_is_described_by_its_listing_and_the_beginning_of_its_weights(
    served: Served,
) -> None:
    found = served.find()
    assert (found.origin, found.commit) == (Origin.DOWNLOAD, commit(served.folder))
    assert names_of(found.weights) == [WEIGHTS]
    assert "tokenizer.json" in names_of(found.others)
    assert found.missing == found.weights + found.others
    assert found.config["architectures"] == ["LlamaForCausalLM"]
    assert not found.gated
    here = served.find(str(served.folder))
    assert here.tensors
    assert found.tensors == here.tensors
    asked = [asked for _, path, asked in served.hub.requests if path.endswith(".safetensors")]
    assert asked == ["bytes=0-100000"]
    # Looking leaves nothing in the cache.
    assert not served.cache.exists()


@pytest.mark.parametrize("lost", ["model-lost.safetensors", "../../x.safetensors"])
def test_shards_are_those_of_the_index_inside_of_the_repository(served: Served, lost: str) -> None:
    shutil.copy(served.folder / WEIGHTS, served.folder / SHARDS[0])
    served.put_index(SHARDS[0], lost)
    found = served.find()
    assert (names_of(found.weights), found.lacking) == ([SHARDS[0]], (lost,))


def test_of_a_model_in_the_cache_the_hub_is_not_asked(served: Served) -> None:
    served.download()
    found = served.find()
    assert (found.origin, found.commit) == (Origin.VOLUME, commit(served.folder))
    assert found.missing == ()
    assert found.passed == (f"platform's cache: it does not have {NAME}",)
    assert found.tensors == served.find(str(served.folder)).tensors
    assert served.hub.requests == []


def test_only_what_the_cache_lacks_is_to_be_downloaded(served: Served) -> None:
    served.download(only="*.safetensors")
    found = served.find()
    assert found.origin is Origin.DOWNLOAD
    assert found.passed[1] == "volume: config.json is missing"
    assert WEIGHTS not in names_of(found.missing)
    assert "config.json" in names_of(found.missing)


def test_what_did_not_change_since_an_older_commit_is_not_downloaded(served: Served) -> None:
    served.download()
    (served.folder / "config.json").write_text('{"model_type": "llama", "architectures": ["New"]}')
    found = served.find(revision=commit(served.folder))
    assert names_of(found.missing) == ["config.json"]
    assert found.config["architectures"] == ["New"]


@pytest.mark.parametrize("trusted", [True, False])
def test_code_is_to_be_downloaded_where_it_may_run(served: Served, trusted: bool) -> None:
    (served.folder / "own.py").write_text("")
    assert ("own.py" in names_of(served.find(code=trusted).others)) is trusted


def without_weights(served: Served) -> None:
    served.download(without="*.safetensors*")
    (snapshot,) = (served.cache / "models--org--name" / "snapshots").iterdir()
    (snapshot / "pytorch_model.bin").unlink()


def without_a_shard(served: Served) -> None:
    for name in SHARDS:
        shutil.copy(served.folder / WEIGHTS, served.folder / name)
    served.put_index(*SHARDS)
    served.download(without=SHARDS[1])


@pytest.mark.parametrize(
    ("prepare", "revision"),
    [(without_weights, None), (without_a_shard, None), (Served.download, "other")],
)
def test_a_cache_that_lacks_something_will_not_do_where_the_hub_fails(
    served: Served, prepare: Callable[[Served], None], revision: str | None
) -> None:
    prepare(served)
    served.hub.status = 503
    assert served.refusal(revision=revision) is Reason.HUB_FAILS


@pytest.mark.parametrize("kind", [Kind.MODEL, Kind.TOKENIZER])
def test_without_weights_the_cache_will_do_for_what_needs_none(served: Served, kind: Kind) -> None:
    served.download(only="*.json")
    served.hub.status = 503
    assert served.find(load_format="dummy", kind=kind).origin is Origin.VOLUME


def test_a_revision_is_a_branch_or_a_commit(served: Served, demo_model: Path) -> None:
    folders = {"main": served.folder, "small": demo_model}
    served.hub.repositories[NAME] = Repository(folders)
    assert served.find(revision="small").commit == commit(demo_model)
    assert served.find(revision=commit(demo_model)).commit == commit(demo_model)
    assert served.find().commit == commit(served.folder)


def test_a_gated_model_is_refused_without_access(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.hub.repositories[NAME].gated = True
    assert served.refusal() is Reason.TOKEN_MISSING
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    assert served.find().gated


@pytest.mark.parametrize("sha", ["../../etc", "main", ""])
def test_a_commit_that_is_no_hash_makes_no_path(sha: str) -> None:
    info = Namespace(id=NAME, sha=sha, siblings=[], gated=False)
    api: Any = Namespace(endpoint="http://hub", model_info=lambda *_, **__: info)
    with pytest.raises(ValueError, match="no hashes"):
        listing(api, Wanted(NAME))
