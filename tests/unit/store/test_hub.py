"""How a model on the hub is described, with the real huggingface_hub."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from support.hub.caches import isolate_hub_library
from support.hub.server import MEMBER, STRANGER, Hub, Repository, commit, hub

from worker.store import Kind, Origin, Places, Reason, Snapshot, Unavailable, Wanted
from worker.store.hub import locate

NAME = "org/name"


@pytest.fixture(scope="module")
def running() -> Iterator[Hub]:
    with hub() as started:
        yield started


@pytest.fixture
def served(running: Hub, folder: Path) -> Iterator[Hub]:
    """A hub without faults that serves the folder."""
    running.add(NAME, folder)
    running.requests.clear()
    yield running
    running.hangs, running.status = False, None


@pytest.fixture
def folder(demo_model: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "repository"
    shutil.copytree(demo_model, copy)
    (copy / "onnx").mkdir()
    (copy / "onnx" / "model.onnx").write_bytes(b"0" * 1000)
    (copy / "pytorch_model.bin").write_bytes(b"0" * 1000)
    return copy


@pytest.fixture(autouse=True)
def _nobodys_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_hub_library(tmp_path, monkeypatch)


def find(served: Hub, model: str = NAME, revision: str | None = None) -> Snapshot:
    return locate(Wanted(model, revision), places(), served.endpoint)


def places() -> Places:
    cache = Path(constants.HF_HUB_CACHE)
    return Places(cache, cache.with_name("platform"))


def download(served: Hub, only: str | None = None, without: str | None = None) -> None:
    cache, endpoint = constants.HF_HUB_CACHE, served.endpoint
    snapshot_download(
        NAME, endpoint=endpoint, cache_dir=cache, allow_patterns=only, ignore_patterns=without
    )


def refusal(served: Hub, model: str = NAME, revision: str | None = None) -> Unavailable:
    with pytest.raises(Unavailable) as raised:
        find(served, model, revision)
    return raised.value


def test_a_model_on_the_hub_is_to_be_downloaded(served: Hub, folder: Path) -> None:
    found = find(served)
    assert (found.origin, found.commit) == (Origin.DOWNLOAD, commit(folder))
    assert [file.name for file in found.weights] == ["model.safetensors"]
    assert "tokenizer.json" in [file.name for file in found.others]
    assert found.missing == found.weights + found.others
    assert found.config["architectures"] == ["LlamaForCausalLM"]


def test_headers_on_the_hub_say_what_those_on_a_disk_say(served: Hub, folder: Path) -> None:
    here = locate(Wanted(str(folder)), places())
    assert here.tensors
    assert find(served).tensors == here.tensors


def test_looking_leaves_nothing_in_the_cache(served: Hub) -> None:
    find(served)
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_of_the_weights_only_the_beginning_is_fetched(served: Hub) -> None:
    find(served)
    assert [asked for _, path, asked in served.requests if path.endswith(".safetensors")] == [
        "bytes=0-100000"
    ]


def test_shards_are_those_of_the_index(served: Hub, folder: Path) -> None:
    shard = "model-00001-of-00001.safetensors"
    shutil.copy(folder / "model.safetensors", folder / shard)
    index = {"weight_map": {"a": shard, "b": "model-lost.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = find(served)
    assert [file.name for file in found.weights] == [shard]
    assert found.lacking == ("model-lost.safetensors",)


def test_of_a_model_in_the_cache_the_hub_is_not_asked(served: Hub, folder: Path) -> None:
    download(served)
    served.requests.clear()
    found = find(served)
    assert (found.origin, found.commit, found.missing) == (Origin.VOLUME, commit(folder), ())
    assert found.passed == (f"platform's cache: it does not have {NAME}",)
    assert found.tensors == locate(Wanted(str(folder)), places()).tensors
    assert served.requests == []


def test_only_what_the_cache_lacks_is_downloaded(served: Hub) -> None:
    download(served, only="*.safetensors")
    found = find(served)
    assert found.origin is Origin.DOWNLOAD
    assert found.passed[1] == "volume: config.json is missing"
    assert "model.safetensors" not in [file.name for file in found.missing]
    assert "config.json" in [file.name for file in found.missing]


def test_what_did_not_change_since_an_older_commit_is_not_downloaded(
    served: Hub, folder: Path
) -> None:
    download(served)
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["New"]}')
    found = find(served, revision=commit(folder))
    assert [file.name for file in found.missing] == ["config.json"]
    assert found.config["architectures"] == ["New"]


@pytest.mark.parametrize("trusted", [True, False])
def test_code_is_to_be_downloaded_where_it_may_run(
    served: Hub, folder: Path, trusted: bool
) -> None:
    (folder / "own.py").write_text("")
    found = locate(Wanted(NAME, code=trusted), places(), served.endpoint)
    assert ("own.py" in [file.name for file in found.others]) is trusted


@pytest.mark.parametrize(
    ("status", "reason"),
    [(429, Reason.RATE_LIMITED), (500, Reason.HUB_FAILS), (503, Reason.HUB_FAILS)],
)
def test_a_hub_that_fails_says_why(served: Hub, status: int, reason: Reason) -> None:
    served.status = status
    assert refusal(served).reason is reason


def test_an_incomplete_cache_will_not_do(served: Hub) -> None:
    download(served, without="*.safetensors*")
    (snapshot,) = (Path(constants.HF_HUB_CACHE) / "models--org--name" / "snapshots").iterdir()
    (snapshot / "pytorch_model.bin").unlink()
    served.status = 503
    assert refusal(served).reason is Reason.HUB_FAILS


def test_a_cache_without_one_of_the_shards_will_not_do(served: Hub, folder: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        shutil.copy(folder / "model.safetensors", folder / name)
    index = {"weight_map": dict(enumerate(names))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    download(served, without=names[1])
    served.status = 503
    assert refusal(served).reason is Reason.HUB_FAILS


def test_another_revision_in_the_cache_will_not_do(served: Hub) -> None:
    download(served)
    served.status = 503
    assert refusal(served, revision="other").reason is Reason.HUB_FAILS


def test_a_revision_is_a_branch_or_a_commit(served: Hub, folder: Path, demo_model: Path) -> None:
    served.repositories[NAME] = Repository({"main": folder, "small": demo_model})
    assert find(served, revision="small").commit == commit(demo_model)
    assert find(served, revision=commit(demo_model)).commit == commit(demo_model)
    assert find(served).commit == commit(folder)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (None, Reason.TOKEN_MISSING),
        (STRANGER, Reason.NO_ACCESS),
        ("hf_unknown", Reason.BAD_TOKEN),
    ],
)
def test_a_gated_model_says_what_is_missing(
    served: Hub, token: str | None, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.repositories[NAME].gated = True
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refused = refusal(served)
    assert refused.reason is reason
    assert token is None or token not in str(refused)


@pytest.mark.parametrize("token", ["hf_“x”", "hf_a\tb", "hf_a b"])
def test_a_token_that_no_header_carries_is_reported_and_not_shown(
    served: Hub, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    served.status = 503
    refused = refusal(served)
    assert refused.reason is Reason.ODD_TOKEN
    assert token not in str(refused)


@pytest.mark.parametrize("guard", ["gated", "private"])
def test_a_token_with_access_gets_a_guarded_model(
    served: Hub, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setattr(served.repositories[NAME], guard, True)
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    assert find(served).gated is (guard == "gated")


@pytest.mark.parametrize("token", [None, STRANGER])
def test_a_private_model_is_like_none(
    served: Hub, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.repositories[NAME].private = True
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    assert refusal(served).reason is Reason.MISSING
    assert refusal(served, "org/none").reason is Reason.MISSING


def test_a_revision_that_is_not_there_is_reported(served: Hub) -> None:
    refused = refusal(served, revision="v9")
    assert refused.reason is Reason.REVISION_MISSING
    assert refused.problem.startswith("org/name@v9: ")


def test_what_is_no_name_of_a_repository_is_reported(served: Hub) -> None:
    assert refusal(served, "not a name!").reason is Reason.NOT_A_REPOSITORY


def test_a_hub_that_hangs_is_given_up(served: Hub) -> None:
    served.hangs = True
    assert refusal(served).reason is Reason.UNREACHABLE


def test_of_a_repository_no_file_is_looked_for_outside_of_it(served: Hub, folder: Path) -> None:
    index = {"weight_map": {"a": "../../x.safetensors", "b": 5, "c": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = find(served)
    assert [file.name for file in found.weights] == ["model.safetensors"]
    assert found.lacking == ("../../x.safetensors",)


@pytest.mark.parametrize("kind", [Kind.MODEL, Kind.TOKENIZER])
def test_without_weights_the_cache_will_do_for_what_needs_none(served: Hub, kind: Kind) -> None:
    download(served, only="*.json")
    served.status = 503
    wanted = Wanted(NAME, load_format="dummy", kind=kind)
    assert locate(wanted, places(), served.endpoint).origin is Origin.VOLUME


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://[bad", "http://a\1", "nonsense"]
)
def test_a_hub_that_is_not_there_is_reported(endpoint: str) -> None:
    with pytest.raises(Unavailable) as raised:
        locate(Wanted(NAME), places(), endpoint)
    assert raised.value.reason is Reason.UNREACHABLE
