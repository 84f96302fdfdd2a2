"""Which files of a repository are downloaded, and what the cache has afterwards."""

import json
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from support.hub.caches import (
    INDEX,
    NAME,
    SHARDS,
    WANTED,
    WEIGHTS,
    On,
    cached,
    found,
    model,
    passed,
    same,
)
from support.hub.server import Repository, commit, paths
from support.processes.background import HUNG_S

from worker.store import Found, Kind, Origin, Reason, Wanted, download, manifest
from worker.store.places import repository_folder
from worker.volume.lease import Claim, Leases

CLUTTER = """README.md .gitattributes pytorch_model.bin tf_model.h5 onnx/model.onnx image.png
original/params.json original/consolidated.00.pth checkpoint-5/config.json training_args.bin
""".split()
LOADED = """chat_template.jinja additional_chat_templates/rag.jinja tokenizer.model merges.txt
modules.json 1_Pooling/config.json 2_Dense/model.safetensors 2_Dense/config.json
""".split()
CODE = ["modeling_own.py", "layers/own.py"]


def sent(on: On) -> list[str]:
    return sorted(part.path for part in on.hub.sent)


def test_what_is_missing_is_downloaded_and_found(on: On, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    result = on.obtain()
    place = on.folder / "snapshots" / commit(on.source)
    why = tuple(f"{place}: it does not have {NAME}" for place in ("platform's cache", "volume"))
    assert result == Found(WANTED, place, Origin.DOWNLOAD, commit(on.source), why)
    assert paths(place) == paths(on.source)
    same(result, on.source)
    assert f"{NAME}: 40.1kB downloaded in " in caplog.text
    on.hub.clear()
    again = on.obtain()
    assert (again.place, again.origin, on.hub.requests) == (place, Origin.VOLUME, [])


def test_only_what_is_loaded_is_downloaded_and_the_manifest_lists_it_all(on: On) -> None:
    before = paths(on.source)
    on.add([*CLUTTER, *LOADED, *CODE])
    # Of the same content as another one, which is not sent twice.
    shutil.copy(on.source / "tokenizer.json", on.source / "added_tokens.json")
    result = on.obtain()
    same(result, on.source)
    assert paths(result.place) == sorted([*before, *LOADED, "added_tokens.json"])
    assert len(sent(on)) == len({*sent(on)}) == len(paths(result.place)) - 1
    sizes = manifest.read(on.folder, commit(on.source))
    assert sizes == {path: (on.source / path).stat().st_size for path in paths(on.source)}
    # Code comes once it is trusted.
    on.hub.clear()
    assert {*CODE} <= {*paths(on.obtain(replace(WANTED, code=True)).place)}
    assert sent(on) == sorted(CODE)


def test_a_tokenizer_comes_without_weights_and_the_model_later_with_them(on: On) -> None:
    result = on.obtain(Wanted(NAME, kind=Kind.TOKENIZER, load_format="dummy"))
    assert paths(result.place) == ["config.json", "tokenizer.json"]
    on.hub.clear()
    assert on.obtain().place == result.place
    assert sent(on) == [WEIGHTS]


def test_the_layout_is_that_of_the_hubs_own_library_and_nothing_else_is_left(on: On) -> None:
    left = on.folder / "blobs" / f"{'0' * 40}.partial"
    left.parent.mkdir(parents=True)
    left.write_text("of another commit")
    result = on.obtain()
    on.hub.clear()
    names = sorted(path.name for path in on.folder.iterdir())
    assert names == [".worker", "blobs", "refs", "snapshots"]
    assert [path.name for path in (on.folder / ".worker").iterdir()] == ["manifests"]
    assert [*(on.folder / "blobs").glob("*.partial")] == []
    assert all((result.place / path).is_symlink() for path in paths(result.place))
    endpoint, cache = on.hub.endpoint, on.places.volume
    assert snapshot_download(NAME, cache_dir=cache, endpoint=endpoint) == str(result.place)
    assert on.hub.sent == []


def test_a_folder_in_lower_case_is_completed_rather_than_doubled(on: On) -> None:
    on.hub.add("Org/Name", on.source)
    lower = cached(on.places.volume, on.source)
    (lower / "tokenizer.json").unlink()
    manifest.mark_begun(repository_folder(on.places.volume, NAME), lower.name)
    assert on.obtain(Wanted("Org/Name")).place == lower
    assert [path.name for path in on.places.volume.iterdir()] == ["models--org--name"]
    assert on.hub.sent == []


def test_a_revision_is_remembered_by_its_name(on: On, tmp_path: Path) -> None:
    other = model(tmp_path / "other", SHARDS)
    on.hub.repositories[NAME] = Repository({"main": on.source, "v2": other})
    result = on.obtain(replace(WANTED, revision="v2"))
    same(result, other)
    refs = {path.name: path.read_text() for path in (on.folder / "refs").iterdir()}
    assert refs == {"v2": commit(other)}
    same(on.obtain(), on.source)
    assert on.obtain(replace(WANTED, revision="v2")).place == result.place


def test_downloads_go_to_the_directory_that_is_named(on: On, tmp_path: Path) -> None:
    result = on.obtain(replace(WANTED, download_dir=tmp_path / "downloads"))
    assert result.place.is_relative_to(tmp_path / "downloads")
    assert not on.places.volume.exists()


@pytest.mark.parametrize("weights", [[WEIGHTS], SHARDS])
def test_what_is_gone_or_cut_is_repaired_alone(on: On, tmp_path: Path, weights: list[str]) -> None:
    source = model(tmp_path / "again", weights)
    on.hub.add(NAME, source)
    result = on.obtain()
    blob = (result.place / weights[0]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    (result.place / "config.json").unlink()
    on.hub.clear()
    again = on.obtain()
    assert again.passed[1].startswith("volume: ")
    same(again, source)
    # The configuration's blob was still there.
    assert sent(on) == [weights[0]]
    if weights is SHARDS:
        (again.place / INDEX).resolve().write_text("{")
        same(on.obtain(), source)


def test_what_is_being_downloaded_is_not_trusted(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    # The smallest file comes last, after all others.
    monkeypatch.setattr(download, "PARALLEL", 1)
    on.hub.wrong = {"tokenizer.json"}
    assert on.refused().reason is Reason.WRONG_CHECKSUM
    assert (on.folder / "snapshots" / commit(on.source) / "config.json").is_file()
    wanted = replace(WANTED, revision=commit(on.source))
    assert "has not been completed" in passed(wanted, on.places)


def test_two_commits_share_what_did_not_change(on: On, tmp_path: Path) -> None:
    old = on.obtain()
    on.hub.clear()
    # It is the newest already, and not called downloaded.
    again = on.obtain(newest=True)
    assert (again.place, again.origin, on.hub.sent) == (old.place, Origin.VOLUME, [])
    assert on.hub.requests
    later = shutil.copytree(on.source, tmp_path / "later")
    (later / "config.json").write_text(json.dumps({"model_type": "llama", "new": True}))
    on.hub.add(NAME, later)
    on.hub.clear()
    assert on.obtain().place == old.place
    assert on.hub.requests == []
    new = on.obtain(newest=True)
    assert (new.origin, new.commit) == (Origin.DOWNLOAD, commit(later))
    same(new, later)
    assert sent(on) == ["config.json"]
    assert on.obtain().commit == commit(later)


def test_a_branch_leads_to_complete_commits_only(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    before = on.obtain()
    (on.source / "config.json").write_text('{"model_type": "llama", "new": 1}')

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(manifest, "write", full)
        assert on.refused(newest=True).reason is Reason.NO_SPACE
    assert found(WANTED, on.places).commit == before.commit
    assert on.obtain(newest=True).commit == commit(on.source) != before.commit


@pytest.mark.parametrize("status", [429, 500, 503])
def test_whether_it_is_the_newest_a_hub_that_fails_need_not_say(
    on: On, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = cached(on.places.volume, on.source)
    on.hub.status = status
    result = on.obtain(newest=True)
    assert (result.place, result.origin) == (snapshot, Origin.VOLUME)
    assert "; what is on the volume is used" in caplog.text


def test_offline_nothing_is_asked(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    first = on.obtain()
    on.hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert on.obtain().place == on.obtain(newest=True).place == first.place
    refused = on.refused(replace(WANTED, revision="v2"))
    assert refused.reason is Reason.OFFLINE
    assert "volume: it does not have revision v2" in refused.problem
    assert on.hub.requests == []


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ThreadPoolExecutor:
    monkeypatch.setattr(download, "LOOK_S", 0.05)
    return ThreadPoolExecutor(6)


def test_of_many_one_downloads(on: On, pool: ThreadPoolExecutor) -> None:
    obtained = [*pool.map(lambda _: on.obtain(), range(6))]
    assert len({one.place for one in obtained}) == 1
    assert all(on.hub.most_often(NAME, path) == 1 for path in paths(on.source))


@pytest.mark.parametrize("newest", [False, True])
def test_a_waiting_worker_reports_how_far_the_owner_is(
    on: On,
    tmp_path: Path,
    pool: ThreadPoolExecutor,
    newest: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    looks, look = threading.Semaphore(0), Leases.look

    def noted(leases: Leases) -> Claim | None:
        looks.release()
        return look(leases)

    monkeypatch.setattr(Leases, "look", noted)
    source = model(tmp_path / "later", SHARDS)
    if newest:
        # An older one, which is there, does not suffice.
        on.obtain()
    on.hub.add(NAME, source)
    on.hub.clear()
    with Leases(on.folder / ".worker").taken(lambda: (3_000_000, 9_000_000)):
        waiting = pool.submit(on.obtain, newest=newest)
        for _ in range(3):
            assert looks.acquire(timeout=HUNG_S)
        assert (waiting.done(), on.hub.requests) == (False, [])
    same(waiting.result(HUNG_S), source)
    assert f"{NAME}: another worker downloads it: 3.00MB of 9.00MB" in caplog.text
    assert caplog.text.count("another worker") == 1
