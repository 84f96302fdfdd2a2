"""Which files of a repository are downloaded, and what the cache has afterwards."""

import json
import logging
import re
import shutil
import threading
from collections.abc import Iterator
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
    hub_and_volume,
    model,
    paths,
    same,
)
from support.hub.server import Repository, commit

from worker.store import Found, Kind, Origin, Reason, Wanted, download, resolve
from worker.store.download.meter import Meter
from worker.store.manifest import read
from worker.volume.lease import Leases

CLUTTER = """README.md .gitattributes pytorch_model.bin tf_model.h5 onnx/model.onnx image.png
original/params.json original/consolidated.00.pth checkpoint-5/config.json training_args.bin
""".split()
LOADED = """chat_template.jinja additional_chat_templates/rag.jinja tokenizer.model merges.txt
modules.json 1_Pooling/config.json 2_Dense/model.safetensors 2_Dense/config.json
""".split()
CODE = ["modeling_own.py", "layers/own.py"]


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    with hub_and_volume(tmp_path, monkeypatch) as both:
        yield both


def test_what_was_not_there_is_downloaded(on: On) -> None:
    found = on.obtain()
    place = on.folder / "snapshots" / commit(on.source)
    assert found == Found(WANTED, place, Origin.DOWNLOAD, commit(on.source), found.passed)
    assert found.passed == (
        f"platform's cache: it does not have {NAME}",
        f"volume: it does not have {NAME}",
    )
    assert paths(place) == paths(on.source)
    same(found, on.source)


def test_what_was_downloaded_is_found_without_the_hub(on: On) -> None:
    first = on.obtain()
    on.hub.clear()
    second = on.obtain()
    assert (second.place, second.origin) == (first.place, Origin.VOLUME)
    assert on.hub.requests == []


def test_only_what_is_loaded_is_downloaded(on: On) -> None:
    before = paths(on.source)
    on.add([*CLUTTER, *LOADED, *CODE])
    assert paths(on.obtain().place) == sorted([*before, *LOADED])
    assert {part.path for part in on.hub.sent} == {*before, *LOADED}


def test_code_is_downloaded_once_it_is_trusted(on: On) -> None:
    on.add(CODE)
    assert not {*CODE} & {*paths(on.obtain().place)}
    on.hub.clear()
    found = on.obtain(replace(WANTED, code=True))
    assert {*CODE} <= {*paths(found.place)}
    assert {part.path for part in on.hub.sent} == {*CODE}


def test_a_tokenizer_comes_without_weights_and_the_model_later_with_them(on: On) -> None:
    found = on.obtain(Wanted(NAME, kind=Kind.TOKENIZER, load_format="dummy"))
    assert paths(found.place) == ["config.json", "tokenizer.json"]
    on.hub.clear()
    assert on.obtain().place == found.place
    assert [part.path for part in on.hub.sent] == [WEIGHTS]


def test_each_file_is_sent_once(on: On, tmp_path: Path) -> None:
    on.hub.add(NAME, model(tmp_path / "shards", SHARDS))
    found = on.obtain()
    assert sorted(part.path for part in on.hub.sent) == paths(found.place)
    for path in paths(found.place):
        assert on.hub.transferred(NAME, path) == (found.place / path).stat().st_size
        assert on.hub.most_often(NAME, path) == 1


def test_names_of_the_same_content_share_it(on: On) -> None:
    shutil.copy(on.source / "tokenizer.json", on.source / "added_tokens.json")
    found = on.obtain()
    same(found, on.source)
    assert {"added_tokens.json", "tokenizer.json"} <= {*paths(found.place)}
    assert len([part for part in on.hub.sent if "token" in part.path]) == 1


def test_the_layout_is_that_of_the_hubs_own_library(on: On) -> None:
    found = on.obtain()
    on.hub.clear()
    names = sorted(path.name for path in on.folder.iterdir())
    assert names == [".worker", "blobs", "refs", "snapshots"]
    assert all((found.place / path).is_symlink() for path in paths(found.place))
    endpoint, cache = on.hub.endpoint, on.places.volume
    assert snapshot_download(NAME, cache_dir=cache, endpoint=endpoint) == str(found.place)
    assert on.hub.sent == []


def test_a_manifest_lists_the_whole_repository(on: On) -> None:
    on.add(CLUTTER)
    on.obtain()
    manifest = read(on.folder, commit(on.source))
    assert manifest
    assert (manifest.model, manifest.commit) == (NAME, commit(on.source))
    sizes = {file.name: file.size for file in manifest.files}
    assert sizes == {path: (on.source / path).stat().st_size for path in paths(on.source)}
    assert all(file.blob for file in manifest.files)


def test_no_lease_and_no_part_of_a_file_is_left(on: On) -> None:
    left = on.folder / "blobs" / f"{'0' * 40}.partial"
    left.parent.mkdir(parents=True)
    left.write_text("of another commit")
    on.obtain()
    assert [path.name for path in (on.folder / ".worker").iterdir()] == ["manifests"]
    assert [*(on.folder / "blobs").glob("*.partial")] == []


def test_a_revision_is_remembered_by_its_name(on: On, tmp_path: Path) -> None:
    other = model(tmp_path / "other", SHARDS)
    on.hub.repositories[NAME] = Repository({"main": on.source, "v2": other})
    found = on.obtain(replace(WANTED, revision="v2"))
    same(found, other)
    assert {path.name: path.read_text() for path in (on.folder / "refs").iterdir()} == {
        "v2": commit(other)
    }
    same(on.obtain(), on.source)
    assert on.obtain(replace(WANTED, revision="v2")).place == found.place


def test_a_commit_is_a_revision_and_needs_no_name(on: On) -> None:
    wanted = replace(WANTED, revision=commit(on.source))
    found = on.obtain(wanted)
    assert found.commit == commit(on.source)
    assert not (on.folder / "refs").exists()
    assert resolve(wanted, on.places) == replace(
        found, origin=Origin.VOLUME, passed=found.passed[:1]
    )


def test_downloads_go_to_the_directory_that_is_named(on: On, tmp_path: Path) -> None:
    found = on.obtain(replace(WANTED, download_dir=tmp_path / "downloads"))
    assert found.place.is_relative_to(tmp_path / "downloads")
    assert not on.places.volume.exists()


@pytest.mark.parametrize("weights", [[WEIGHTS], SHARDS])
def test_what_is_missing_or_cut_is_repaired_and_the_rest_left_alone(
    on: On, tmp_path: Path, weights: list[str]
) -> None:
    source = model(tmp_path / "again", weights)
    on.hub.add(NAME, source)
    found = on.obtain()
    blob = (found.place / weights[0]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    (found.place / "config.json").unlink()
    on.hub.clear()
    again = on.obtain()
    assert again.passed[1].startswith("volume: ")
    same(again, source)
    # The configuration's blob was still there.
    assert {part.path for part in on.hub.sent} == {weights[0]}


def test_an_index_may_have_been_cut(on: On, tmp_path: Path) -> None:
    source = model(tmp_path / "shards", SHARDS)
    on.hub.add(NAME, source)
    (on.obtain().place / INDEX).resolve().write_text("{")
    same(on.obtain(), source)


def test_two_commits_share_what_did_not_change(on: On, tmp_path: Path) -> None:
    old = on.obtain()
    later = shutil.copytree(on.source, tmp_path / "later")
    (later / "config.json").write_text(json.dumps({"model_type": "llama", "new": True}))
    on.hub.add(NAME, later)
    on.hub.clear()
    assert on.obtain().place == old.place
    assert on.hub.requests == []
    new = on.obtain(newest=True)
    assert (new.origin, new.commit) == (Origin.DOWNLOAD, commit(later))
    same(new, later)
    assert [part.path for part in on.hub.sent] == ["config.json"]
    assert on.obtain().commit == commit(later)


def test_what_is_the_newest_already_is_not_called_downloaded(on: On) -> None:
    first = on.obtain()
    on.hub.clear()
    found = on.obtain(newest=True)
    assert (found.place, found.origin) == (first.place, Origin.VOLUME)
    assert on.hub.requests
    assert on.hub.sent == []


def test_the_newest_is_waited_for_although_there_is_an_older_one(
    on: On, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LOOK_S", 0.1)
    on.obtain()
    later = model(tmp_path / "later", SHARDS)
    on.hub.add(NAME, later)
    found: list[Found] = []
    waiting = threading.Thread(target=lambda: found.append(on.obtain(newest=True)))
    with Leases(on.folder / ".worker").taken(lambda: (0, 0)):
        waiting.start()
        waiting.join(0.4)
        assert waiting.is_alive()
    waiting.join(60)
    same(found[0], later)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_whether_it_is_the_newest_a_hub_that_fails_need_not_say(
    on: On, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = on.obtain()
    on.hub.status = status
    found = on.obtain(newest=True)
    assert (found.place, found.origin) == (first.place, Origin.VOLUME)
    assert "; what is on the volume is used" in caplog.text


def test_offline_nothing_is_asked(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    first = on.obtain()
    on.hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert on.obtain().place == first.place
    assert on.obtain(newest=True).place == first.place
    refused = on.refused(replace(WANTED, revision="v2"))
    assert refused.reason is Reason.OFFLINE
    assert "volume: it does not have revision v2" in refused.problem
    assert on.hub.requests == []


# Several workers:


def test_of_many_one_downloads(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LOOK_S", 0.05)
    found: list[Found] = []
    threads = [threading.Thread(target=lambda: found.append(on.obtain())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({one.place for one in found}) == 1
    assert len(found) == len(threads)
    assert all(on.hub.most_often(NAME, path) == 1 for path in paths(on.source))


def test_a_waiting_worker_reports_how_far_the_owner_is(
    on: On, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(download, "LOOK_S", 0.05)
    found: list[Found] = []
    with Leases(on.folder / ".worker").taken(lambda: (3_000_000, 9_000_000)):
        waiting = threading.Thread(target=lambda: found.append(on.obtain()))
        waiting.start()
        while "another worker" not in caplog.text:
            waiting.join(0.05)
            assert waiting.is_alive()
        waiting.join(0.2)
        assert on.hub.requests == []
    waiting.join(60)
    assert f"{NAME}: another worker downloads it: 3.00MB of 9.00MB" in caplog.text
    assert caplog.text.count("another worker") == 1
    same(found[0], on.source)


def test_a_log_shows_how_far_it_is(
    on: On, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Meter, "INTERVAL_S", 0.05)
    on.hub.throttle = 100_000
    on.obtain()
    lines = [record.message for record in caplog.records if " of " in record.message]
    assert len(lines) > 1
    line = re.compile(rf"{NAME}: \S+B of 40\.1kB \(\d+ %\), \S+B/s, (\d\d:\d\d left|nothing comes)")
    assert all(map(line.fullmatch, lines)), lines
    assert any(text.endswith(" left") for text in lines), lines
    assert f"{NAME}: 40.1kB downloaded in " in caplog.text
