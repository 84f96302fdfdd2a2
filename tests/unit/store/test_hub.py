"""How a model on the hub is described, with the real huggingface_hub; nothing is downloaded."""

import json
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from huggingface_hub import snapshot_download
from support.hub.caches import INDEX, NAME, SHARDS, WANTED, WEIGHTS, On, cached
from support.hub.server import MEMBER, commit

from worker.store import File, Origin, Reason, Snapshot, Unavailable, Wanted
from worker.store.hub import listing, locate


def find(on: On, wanted: Wanted = WANTED) -> Snapshot:
    return locate(wanted, on.places, on.hub.endpoint)


def refusal(on: On) -> Reason:
    with pytest.raises(Unavailable) as raised:
        find(on)
    return raised.value.reason


def names_of(files: Iterable[File]) -> list[str]:
    return [file.name for file in files]


def test_a_model_on_the_hub_is_described_by_its_listing_and_headers(on: On) -> None:
    on.add(["pytorch_model.bin", "onnx/model.onnx", "own.py"])
    found = find(on)
    assert (found.origin, found.commit) == (Origin.DOWNLOAD, commit(on.source))
    assert names_of(found.weights) == [WEIGHTS]
    assert names_of(found.others) == ["config.json", "tokenizer.json"]
    assert found.missing == found.weights + found.others
    assert (found.config["architectures"], found.gated) == (["Llama"], False)
    assert found.tensors == find(on, Wanted(str(on.source))).tensors == {"F32": 10_000}
    asked = [asked for _, path, asked in on.hub.requests if path.endswith(".safetensors")]
    assert asked == ["bytes=0-100000"]
    assert "own.py" in names_of(find(on, replace(WANTED, code=True)).others)
    # Looking leaves nothing in the cache.
    assert not on.places.volume.exists()


@pytest.mark.parametrize("lost", ["model-lost.safetensors", "../../x.safetensors"])
def test_shards_are_those_of_the_index_inside_of_the_repository(on: On, lost: str) -> None:
    (on.source / SHARDS[0]).write_bytes((on.source / WEIGHTS).read_bytes())
    (on.source / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": lost}}))
    found = find(on)
    assert (names_of(found.weights), found.lacking) == ([SHARDS[0]], (lost,))


def test_of_a_model_in_the_cache_the_hub_is_not_asked(on: On) -> None:
    cached(on.places.volume, on.source)
    found = find(on)
    assert (found.origin, found.commit) == (Origin.VOLUME, commit(on.source))
    assert (found.missing, found.tensors) == ((), {"F32": 10_000})
    assert found.passed == (f"platform's cache: it does not have {NAME}",)
    assert on.hub.requests == []


def test_only_what_the_cache_has_of_no_commit_is_to_be_downloaded(on: On) -> None:
    where: Any = {"endpoint": on.hub.endpoint, "cache_dir": on.places.volume}
    snapshot_download(NAME, **where, allow_patterns="*.safetensors")
    found = find(on)
    assert (found.origin, found.passed[1]) == (Origin.DOWNLOAD, "volume: config.json is missing")
    assert names_of(found.missing) == ["config.json", "tokenizer.json"]
    snapshot_download(NAME, **where)
    (on.source / "config.json").write_text('{"architectures": ["New"]}')
    found = find(on, replace(WANTED, revision=commit(on.source)))
    assert names_of(found.missing) == ["config.json"]
    assert found.config == {"architectures": ["New"]}


def test_a_cache_that_lacks_something_will_not_do_where_the_hub_fails(on: On) -> None:
    (cached(on.places.volume, on.source) / WEIGHTS).unlink()
    on.hub.status = 503
    assert refusal(on) is Reason.HUB_FAILS


def test_a_gated_model_is_refused_without_access(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    on.hub.repositories[NAME].gated = True
    assert refusal(on) is Reason.TOKEN_MISSING
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    assert find(on).gated


@pytest.mark.parametrize("sha", ["../../etc", "main", ""])
def test_a_commit_that_is_no_hash_makes_no_path(sha: str) -> None:
    info = Namespace(id=NAME, sha=sha, siblings=[], gated=False)
    api: Any = Namespace(endpoint="http://hub", model_info=lambda *_, **__: info)
    with pytest.raises(ValueError, match="no hashes"):
        listing(api, WANTED)
