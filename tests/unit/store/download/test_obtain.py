"""The files of a repository that are downloaded, and the content of the cache afterwards."""

import json
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download
from support.hub.caches import (
    ARTIFACT,
    INDEX,
    NAME,
    SHARDS,
    WEIGHTS,
    HubAndVolume,
    assert_same_content,
    fill_cache,
    locate,
    make_model,
    skip_reasons,
)
from support.hub.server import Repository, commit_id, relative_paths
from support.processes.background import HUNG_S

from worker.store import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    Origin,
    Reason,
    download,
    manifest,
)
from worker.store.download import ProgressMeter
from worker.store.places import repository_folder
from worker.volume.lease import Claim, LeaseDirectory

CLUTTER = """README.md .gitattributes pytorch_model.bin tf_model.h5 onnx/model.onnx image.png
original/params.json original/consolidated.00.pth checkpoint-5/config.json training_args.bin
""".split()
LOADED = """chat_template.jinja additional_chat_templates/rag.jinja tokenizer.model merges.txt
modules.json 1_Pooling/config.json 2_Dense/model.safetensors 2_Dense/config.json
""".split()
CODE = ["modeling_own.py", "layers/own.py"]


def sent_paths(store: HubAndVolume) -> list[str]:
    return sorted(part.path for part in store.hub.sent_ranges)


def test_a_missing_model_is_downloaded_and_then_found(
    store: HubAndVolume, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    result = store.obtain()
    place = store.folder / "snapshots" / commit_id(store.source)
    why = tuple(f"{place}: it does not have {NAME}" for place in ("platform's cache", "volume"))
    assert result == ArtifactLocation(
        ARTIFACT, place, Origin.DOWNLOAD, commit_id(store.source), why
    )
    assert relative_paths(place) == relative_paths(store.source)
    assert_same_content(result, store.source)
    assert f"{NAME}: 40.1kB downloaded in " in caplog.text
    store.hub.clear()
    again = store.obtain()
    assert (again.directory, again.origin, store.hub.requests) == (place, Origin.VOLUME, [])


def test_only_loaded_files_are_downloaded_and_the_manifest_lists_all_files(
    store: HubAndVolume,
) -> None:
    before = relative_paths(store.source)
    store.add_files([*CLUTTER, *LOADED, *CODE])
    # A file with the same content as another one, which is sent only once.
    shutil.copy(store.source / "tokenizer.json", store.source / "added_tokens.json")
    result = store.obtain()
    assert_same_content(result, store.source)
    assert relative_paths(result.directory) == sorted([*before, *LOADED, "added_tokens.json"])
    assert (
        len(sent_paths(store))
        == len({*sent_paths(store)})
        == len(relative_paths(result.directory)) - 1
    )
    sizes = manifest.read_sizes(store.folder, commit_id(store.source))
    assert sizes == {
        path: (store.source / path).stat().st_size for path in relative_paths(store.source)
    }
    # Code is downloaded once it is trusted.
    store.hub.clear()
    assert {*CODE} <= {*relative_paths(store.obtain(replace(ARTIFACT, code=True)).directory)}
    assert sent_paths(store) == sorted(CODE)


def test_a_tokenizer_is_downloaded_without_weights_which_the_model_adds_later(
    store: HubAndVolume,
) -> None:
    result = store.obtain(Artifact(NAME, kind=ArtifactKind.TOKENIZER, load_format="dummy"))
    assert relative_paths(result.directory) == ["config.json", "tokenizer.json"]
    store.hub.clear()
    assert store.obtain().directory == result.directory
    assert sent_paths(store) == [WEIGHTS]


def test_the_cache_has_the_layout_of_the_hubs_library_and_no_leftovers(
    store: HubAndVolume,
) -> None:
    leftover = store.folder / "blobs" / f"{'0' * 40}.partial"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("of another commit")
    result = store.obtain()
    store.hub.clear()
    names = sorted(path.name for path in store.folder.iterdir())
    assert names == [".worker", "blobs", "refs", "snapshots"]
    assert [path.name for path in (store.folder / ".worker").iterdir()] == ["manifests"]
    assert [*(store.folder / "blobs").glob("*.partial")] == []
    assert all((result.directory / path).is_symlink() for path in relative_paths(result.directory))
    endpoint, cache = store.hub.endpoint, store.places.volume
    assert snapshot_download(NAME, cache_dir=cache, endpoint=endpoint) == str(result.directory)
    assert store.hub.sent_ranges == []


def test_a_folder_in_lower_case_is_completed_instead_of_duplicated(store: HubAndVolume) -> None:
    store.hub.add("Org/Name", store.source)
    lower = fill_cache(store.places.volume, store.source)
    (lower / "tokenizer.json").unlink()
    manifest.mark_download_started(repository_folder(store.places.volume, NAME), lower.name)
    assert store.obtain(Artifact("Org/Name")).directory == lower
    assert [path.name for path in store.places.volume.iterdir()] == ["models--org--name"]
    assert store.hub.sent_ranges == []


def test_the_name_of_a_revision_is_stored_in_the_cache(store: HubAndVolume, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", SHARDS)
    store.hub.repositories[NAME] = Repository({"main": store.source, "v2": other})
    result = store.obtain(replace(ARTIFACT, revision="v2"))
    assert_same_content(result, other)
    refs = {path.name: path.read_text() for path in (store.folder / "refs").iterdir()}
    assert refs == {"v2": commit_id(other)}
    assert_same_content(store.obtain(), store.source)
    assert store.obtain(replace(ARTIFACT, revision="v2")).directory == result.directory


def test_downloads_go_to_the_download_directory_of_the_artifact(
    store: HubAndVolume, tmp_path: Path
) -> None:
    result = store.obtain(replace(ARTIFACT, download_dir=tmp_path / "downloads"))
    assert result.directory.is_relative_to(tmp_path / "downloads")
    assert not store.places.volume.exists()


@pytest.mark.parametrize("weights", [[WEIGHTS], SHARDS])
def test_only_missing_or_truncated_files_are_downloaded_again(
    store: HubAndVolume, tmp_path: Path, weights: list[str]
) -> None:
    source = make_model(tmp_path / "again", weights)
    store.hub.add(NAME, source)
    result = store.obtain()
    blob = (result.directory / weights[0]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    (result.directory / "config.json").unlink()
    store.hub.clear()
    again = store.obtain()
    assert again.skipped[1].startswith("volume: ")
    assert_same_content(again, source)
    # The configuration's blob was still there.
    assert sent_paths(store) == [weights[0]]
    if weights is SHARDS:
        (again.directory / INDEX).resolve().write_text("{")
        assert_same_content(store.obtain(), source)


def test_broken_links_are_repaired_without_a_download(store: HubAndVolume) -> None:
    place = store.obtain().directory
    blob = (place / "config.json").resolve()
    targets = {"config.json": "config.json", "tokenizer.json": "nowhere", WEIGHTS: str(blob)}
    for name, target in targets.items():
        (place / name).unlink()
        (place / name).symlink_to(target)
    store.hub.clear()
    assert_same_content(store.obtain(), store.source)
    assert store.hub.sent_ranges == []


def test_an_incomplete_download_is_not_trusted(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The smallest file is downloaded last.
    monkeypatch.setattr(download, "PARALLEL", 1)
    store.hub.corrupt_paths = {"tokenizer.json"}
    assert store.obtain_error().reason is Reason.WRONG_CHECKSUM
    assert (store.folder / "snapshots" / commit_id(store.source) / "config.json").is_file()
    artifact = replace(ARTIFACT, revision=commit_id(store.source))
    assert "has not been completed" in skip_reasons(artifact, store.places)


def test_two_commits_share_unchanged_files(store: HubAndVolume, tmp_path: Path) -> None:
    old = store.obtain()
    store.hub.clear()
    # The cached commit is already the newest, so its origin is the volume.
    again = store.obtain(refresh=True)
    assert (again.directory, again.origin, store.hub.sent_ranges) == (
        old.directory,
        Origin.VOLUME,
        [],
    )
    assert store.hub.requests
    later = shutil.copytree(store.source, tmp_path / "later")
    (later / "config.json").write_text(json.dumps({"model_type": "llama", "new": True}))
    store.hub.add(NAME, later)
    store.hub.clear()
    assert store.obtain().directory == old.directory
    assert store.hub.requests == []
    new = store.obtain(refresh=True)
    assert (new.origin, new.commit) == (Origin.DOWNLOAD, commit_id(later))
    assert_same_content(new, later)
    assert sent_paths(store) == ["config.json"]
    assert store.obtain().commit == commit_id(later)


def test_a_branch_refers_only_to_complete_commits(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.obtain()
    (store.source / "config.json").write_text('{"model_type": "llama", "new": 1}')

    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(manifest, "write", raise_disk_full)
        assert store.obtain_error(refresh=True).reason is Reason.NO_SPACE
    assert locate(ARTIFACT, store.places).commit == before.commit
    assert store.obtain(refresh=True).commit == commit_id(store.source) != before.commit


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_cached_commit_is_used_if_the_hub_fails_to_name_the_newest(
    store: HubAndVolume, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = fill_cache(store.places.volume, store.source)
    store.hub.status = status
    result = store.obtain(refresh=True)
    assert (result.directory, result.origin) == (snapshot, Origin.VOLUME)
    assert "; using the copy on the volume" in caplog.text


def test_nothing_is_requested_in_offline_mode(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.obtain()
    store.hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert store.obtain().directory == store.obtain(refresh=True).directory == first.directory
    refused = store.obtain_error(replace(ARTIFACT, revision="v2"))
    assert refused.reason is Reason.OFFLINE
    assert "volume: it does not have revision v2" in refused.problem
    assert store.hub.requests == []


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ThreadPoolExecutor:
    monkeypatch.setattr(download, "POLL_S", 0.05)
    return ThreadPoolExecutor(6)


def test_only_one_of_several_workers_downloads(
    store: HubAndVolume, pool: ThreadPoolExecutor
) -> None:
    obtained = [*pool.map(lambda _: store.obtain(), range(6))]
    assert len({one.directory for one in obtained}) == 1
    assert all(store.hub.max_sends(NAME, path) == 1 for path in relative_paths(store.source))


@pytest.mark.parametrize("newest", [False, True])
def test_a_waiting_worker_logs_the_progress_of_the_owner(
    store: HubAndVolume,
    tmp_path: Path,
    pool: ThreadPoolExecutor,
    newest: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    polls, poll = threading.Semaphore(0), LeaseDirectory.poll_claim

    def count_poll(leases: LeaseDirectory) -> Claim | None:
        polls.release()
        return poll(leases)

    monkeypatch.setattr(LeaseDirectory, "poll_claim", count_poll)
    source = make_model(tmp_path / "later", SHARDS)
    if newest:
        # An older commit on the disk is not enough.
        store.obtain()
    store.hub.add(NAME, source)
    store.hub.clear()
    with LeaseDirectory(store.folder / ".worker").acquire(lambda: (3_000_000, 9_000_000)):
        waiting = pool.submit(store.obtain, refresh=newest)
        for _ in range(3):
            assert polls.acquire(timeout=HUNG_S)
        assert (waiting.done(), store.hub.requests) == (False, [])
    assert_same_content(waiting.result(HUNG_S), source)
    assert f"{NAME}: another worker is downloading it: 3.00MB of 9.00MB" in caplog.text
    assert caplog.text.count("another worker") == 1


# The log lines of a download's progress:


TB = 10**12


@pytest.mark.parametrize(
    ("done", "total", "first", "last"),
    [
        ([TB, TB + 1000], 2 * TB, "1.00TB of 2.00TB (50 %), ", "1.00TB downloaded in "),
        ([100, 300], 40_077, "300B of 40.1kB (1 %), ", "40.0kB downloaded in "),
        # Nothing is downloaded if all files were already there.
        ([1000], 1000, "1.00kB of 1.00kB (100 %), 0.00B/s, nothing comes", "1.00kB of 1.00kB "),
    ],
    ids=["half", "little", "all"],
)
def test_progress_is_logged_and_readable(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    done: list[int],
    total: int,
    first: str,
    last: str,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(ProgressMeter, "INTERVAL_S", 0)
    counts = chain(done, repeat(done[-1]))
    meter = ProgressMeter("org/name")
    assert meter.stored_and_total_bytes() == (0, 0)
    meter.begin(total, lambda: next(counts))
    meter.log_progress()
    meter.log_progress()
    meter.log_duration()
    assert meter.stored_and_total_bytes() == (done[-1], total)
    line = caplog.messages[0]
    assert line.startswith(f"org/name: {first}")
    # Files that were already there don't count for the rate.
    assert (line.endswith(" left"), "TB/s" in line) == (len(done) > 1, False)
    assert caplog.messages[-1].startswith(f"org/name: {last}")
