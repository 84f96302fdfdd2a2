"""Reasons why a model is unavailable; files that a failure leaves behind are not used."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
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
)
from support.hub.server import MEMBER, STRANGER

from worker.errors import StartFailed
from worker.store import (
    Artifact,
    ModelUnavailable,
    Reason,
    UnlocatedArtifact,
    download,
    resolve_on_disk,
)
from worker.store.download import obtain_artifact
from worker.volume.lease import LeaseDirectory


def assert_nothing_is_trusted(store: HubAndVolume) -> None:
    """Check that leftovers are not used, and that another worker may try immediately."""
    assert isinstance(resolve_on_disk(ARTIFACT, store.places), UnlocatedArtifact)
    assert not [*store.folder.glob(".worker/lease-*")]
    assert not [*store.folder.glob(".worker/manifests/*.json")]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_problem_and_a_remedy(reason: Reason) -> None:
    error = ModelUnavailable(Artifact("a/b", setting="EMBEDDING_MODEL_NAME"), reason, "why")
    assert isinstance(error, StartFailed)
    assert error.problem.startswith("a/b: ")
    assert "why" in error.message
    assert error.message == f"{error.problem}: {error.remedy}"
    assert "{" not in error.message


@pytest.mark.parametrize("kind", ["MODEL", "TOKENIZER", "EMBEDDING_MODEL"])
def test_the_setting_of_a_missing_revision_is_named(store: HubAndVolume, kind: str) -> None:
    refused = store.obtain_error(Artifact(NAME, "v9", setting=f"{kind}_NAME"))
    assert refused.reason is Reason.REVISION_MISSING
    assert refused.message.startswith(f"{NAME}@v9: ")
    assert f"set {kind}_REVISION to" in refused.remedy
    assert not store.places.volume.exists()


@pytest.mark.parametrize(
    ("guard", "token", "reason", "word"),
    [
        ("gated", None, Reason.TOKEN_MISSING, "HF_TOKEN"),
        ("gated", STRANGER, Reason.NO_ACCESS, "licence"),
        ("gated", "hf_unknown", Reason.BAD_TOKEN, "HF_TOKEN"),
        ("gated", "hf_“x”", Reason.ODD_TOKEN, "HF_TOKEN"),
        *(("private", token, Reason.MISSING, "HF_TOKEN") for token in (None, STRANGER)),
    ],
)
def test_the_refusal_of_a_gated_or_private_repository_names_the_reason(
    store: HubAndVolume,
    guard: str,
    token: str | None,
    reason: Reason,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setattr(store.hub.repositories[NAME], guard, True)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refused = store.obtain_error()
    assert (refused.reason, word in refused.message) == (reason, True)
    assert token is None or token not in refused.message
    assert not store.places.volume.exists()
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    assert_same_content(store.obtain(), store.source)


def test_a_malformed_token_is_the_reason_if_the_hub_fails(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a b")
    store.hub.status = 503
    assert store.obtain_error().reason is Reason.ODD_TOKEN


@pytest.mark.parametrize("name", ["not a name!", "a/b/c", "/models/none", "~x/y/z", "a" * 200])
def test_an_invalid_repository_name_is_reported(store: HubAndVolume, name: str) -> None:
    refused = store.obtain_error(Artifact(name))
    assert (refused.reason, "MODEL_NAME" in refused.remedy) == (Reason.NOT_A_REPOSITORY, True)
    assert store.hub.requests == []


@pytest.mark.parametrize("old", ["org/old", "Org/Name"])
def test_a_renamed_repository_is_downloaded_and_its_new_name_reported(
    store: HubAndVolume, caplog: pytest.LogCaptureFixture, old: str
) -> None:
    store.hub.new_names[old] = NAME
    result = store.obtain(Artifact(old))
    assert_same_content(result, store.source)
    assert result.directory.parents[1].name == f"models--{old.replace('/', '--')}"
    # A name in another case is not a new name.
    new = f"{old} is now called {NAME}: set MODEL_NAME to the new name"
    assert (new in caplog.text) is (old == "org/old")
    store.hub.clear()
    assert store.obtain(Artifact(old)).directory == result.directory
    assert store.hub.requests == []


def test_without_weights_there_is_nothing_to_load(store: HubAndVolume) -> None:
    (store.source / WEIGHTS).unlink()
    refused = store.obtain_error()
    assert (refused.reason, "LOAD_FORMAT" in refused.remedy) == (Reason.NO_FILES, True)
    assert store.hub.sent_ranges == []
    assert not store.places.volume.exists()
    assert store.obtain_error(replace(ARTIFACT, load_format="pt")).reason is Reason.NO_FILES
    assert store.obtain(replace(ARTIFACT, load_format="dummy"))
    # Now only its configuration is on the disk.
    assert store.obtain_error().reason is Reason.NO_FILES


def test_an_index_with_missing_files_is_reported(store: HubAndVolume, tmp_path: Path) -> None:
    source = make_model(tmp_path / "shards", SHARDS)
    index = {"weight_map": dict(enumerate([*SHARDS, "lost.safetensors", "../x.safetensors"]))}
    (source / INDEX).write_text(json.dumps(index))
    store.hub.add(NAME, source)
    refused = store.obtain_error()
    assert refused.reason is Reason.NO_FILES
    assert "(../x.safetensors, lost.safetensors)" in refused.problem
    assert [part.path for part in store.hub.sent_ranges] == [INDEX]
    assert_nothing_is_trusted(store)


@pytest.mark.parametrize(
    ("status", "reason", "tries"),
    [
        *((429, Reason.RATE_LIMITED, 4), (500, Reason.HUB_FAILS, 4), (503, Reason.HUB_FAILS, 4)),
        *((403, Reason.TOKEN_MISSING, 1), (404, Reason.MISSING, 1), (410, Reason.MISSING, 1)),
    ],
)
def test_requests_are_retried_only_for_temporary_failures_of_the_hub(
    store: HubAndVolume, status: int, reason: Reason, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    store.hub.status = status
    assert store.obtain_error().reason is reason
    assert len(store.hub.requests) == caplog.text.count("retrying in 0.") + 1 == tries
    assert not store.places.volume.exists()
    # The failure doesn't affect a snapshot that is in the cache.
    snapshot = fill_cache(store.places.volume, store.source)
    assert locate(ARTIFACT, store.places).directory == snapshot


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://[bad", "http://a\1", "nonsense"]
)
def test_an_unreachable_hub_is_reported(store: HubAndVolume, endpoint: str) -> None:
    with pytest.raises(ModelUnavailable) as raised:
        obtain_artifact(ARTIFACT, store.places, endpoint)
    assert raised.value.reason is Reason.UNREACHABLE
    assert not store.places.volume.exists()


def test_a_hub_that_hangs_is_reported_as_unreachable(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LISTING_TIMEOUT_S", 0.05)
    store.hub.hangs = True
    assert store.obtain_error().reason is Reason.UNREACHABLE


def test_disk_space_is_checked_before_the_download(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = shutil.disk_usage("/")._replace(total=40_000, free=40_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    refused = store.obtain_error()
    assert refused.reason is Reason.NO_SPACE
    sizes = f"the download to {store.places.volume} needs 40.1kB, and 40.0kB are free"
    assert sizes in refused.problem
    assert store.hub.sent_ranges == []
    assert_nothing_is_trusted(store)


def test_files_on_the_disk_need_no_further_space(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.obtain().directory / "config.json").resolve().unlink()
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert_same_content(store.obtain(), store.source)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported(
    store: HubAndVolume, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raise_disk_full)
        refused = store.obtain_error()
    assert (refused.reason, "BASE_PATH" in refused.remedy) == (Reason.NO_SPACE, True)
    assert os.strerror(number) in refused.problem
    assert_nothing_is_trusted(store)
    assert_same_content(store.obtain(), store.source)


@pytest.mark.parametrize("name", ["", "blobs", "snapshots", "refs", "refs/main"])
def test_an_unwritable_path_is_reported(store: HubAndVolume, name: str) -> None:
    path = store.folder / name if name else store.places.volume
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "refs/main":
        path.mkdir()
    else:
        path.symlink_to(path)
    refused = store.obtain_error()
    assert (refused.reason, "BASE_PATH" in refused.remedy) == (Reason.UNWRITABLE, True)
    assert str(store.places.volume) in refused.problem
    assert isinstance(resolve_on_disk(ARTIFACT, store.places), UnlocatedArtifact)
    path.rename(path.with_name("away"))
    assert_same_content(store.obtain(), store.source)


def test_a_download_that_another_worker_completed_is_not_repeated(
    store: HubAndVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateLeases(LeaseDirectory):
        """Leases that are acquired just after another worker has completed the download."""

        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            fill_cache(store.places.volume, store.source, with_manifest=True)

    monkeypatch.setattr(download, "LeaseDirectory", LateLeases)
    assert_same_content(store.obtain(), store.source)
    assert store.hub.requests == []
