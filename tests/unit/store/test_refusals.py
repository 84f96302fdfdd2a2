"""Why a model is unavailable: each reason has its message, and nothing that is left counts."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.hub.caches import INDEX, NAME, SHARDS, WANTED, WEIGHTS, On, cached, found, model, same
from support.hub.server import MEMBER, STRANGER

from worker.errors import StartFailed
from worker.store import NotFound, Reason, Unavailable, Wanted, download, resolve
from worker.store.download import obtain
from worker.volume.lease import Leases


def nothing_trusted(on: On) -> None:
    """Check that what is left counts for nothing, and that the next worker may try at once."""
    assert isinstance(resolve(WANTED, on.places), NotFound)
    assert not [*on.folder.glob(".worker/lease-*")]
    assert not [*on.folder.glob(".worker/manifests/*.json")]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_reported_with_what_can_be_done(reason: Reason) -> None:
    error = Unavailable(Wanted("a/b", setting="EMBEDDING_MODEL_NAME"), reason, "why")
    assert isinstance(error, StartFailed)
    assert error.problem.startswith("a/b: ")
    assert error.problem.endswith(" (why)")
    assert error.message == f"{error.problem}: {error.remedy}"
    assert "{" not in error.message


@pytest.mark.parametrize("kind", ["MODEL", "TOKENIZER", "EMBEDDING_MODEL"])
def test_the_setting_of_a_missing_revision_is_named(on: On, kind: str) -> None:
    refused = on.refused(Wanted(NAME, "v9", setting=f"{kind}_NAME"))
    assert refused.reason is Reason.REVISION_MISSING
    assert refused.message.startswith(f"{NAME}@v9: ")
    assert f"set {kind}_REVISION to" in refused.remedy
    assert not on.places.volume.exists()


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
def test_a_guarded_repository_says_what_is_missing(
    on: On,
    guard: str,
    token: str | None,
    reason: Reason,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setattr(on.hub.repositories[NAME], guard, True)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refused = on.refused()
    assert (refused.reason, word in refused.message) == (reason, True)
    assert token is None or token not in refused.message
    assert not on.places.volume.exists()
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    same(on.obtain(), on.source)


def test_an_odd_token_is_why_a_hub_fails(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a b")
    on.hub.status = 503
    assert on.refused().reason is Reason.ODD_TOKEN


def test_what_is_not_there_is_not_asked_for_again(on: On) -> None:
    assert on.refused(Wanted("org/none")).reason is Reason.MISSING
    assert len(on.hub.requests) == 1


@pytest.mark.parametrize("name", ["not a name!", "a/b/c", "/models/none", "~x/y/z", "a" * 200])
def test_what_is_no_name_of_a_repository_is_reported(on: On, name: str) -> None:
    refused = on.refused(Wanted(name))
    assert (refused.reason, "MODEL_NAME" in refused.remedy) == (Reason.NOT_A_REPOSITORY, True)
    assert on.hub.requests == []


@pytest.mark.parametrize("old", ["org/old", "Org/Name"])
def test_a_renamed_repository_is_downloaded_and_its_new_name_reported(
    on: On, caplog: pytest.LogCaptureFixture, old: str
) -> None:
    on.hub.moved[old] = NAME
    result = on.obtain(Wanted(old))
    same(result, on.source)
    assert result.place.parents[1].name == f"models--{old.replace('/', '--')}"
    # Other letters are no new name.
    new = f"{old} is called {NAME} now: set MODEL_NAME to that"
    assert (new in caplog.text) is (old == "org/old")
    on.hub.clear()
    assert on.obtain(Wanted(old)).place == result.place
    assert on.hub.requests == []


def test_without_weights_there_is_nothing_to_load(on: On) -> None:
    (on.source / WEIGHTS).unlink()
    refused = on.refused()
    assert (refused.reason, "LOAD_FORMAT" in refused.remedy) == (Reason.NO_FILES, True)
    assert on.hub.sent == []
    assert not on.places.volume.exists()
    assert on.refused(replace(WANTED, load_format="pt")).reason is Reason.NO_FILES
    assert on.obtain(replace(WANTED, load_format="dummy"))
    # Its configuration alone is on the disk by now.
    assert on.refused().reason is Reason.NO_FILES


def test_an_index_that_promises_too_much_is_reported(on: On, tmp_path: Path) -> None:
    source = model(tmp_path / "shards", SHARDS)
    index = {"weight_map": dict(enumerate([*SHARDS, "lost.safetensors", "../x.safetensors"]))}
    (source / INDEX).write_text(json.dumps(index))
    on.hub.add(NAME, source)
    refused = on.refused()
    assert refused.reason is Reason.NO_FILES
    assert "(../x.safetensors, lost.safetensors)" in refused.problem
    assert [part.path for part in on.hub.sent] == [INDEX]
    nothing_trusted(on)


@pytest.mark.parametrize(
    ("status", "reason", "tries"),
    [
        *((429, Reason.RATE_LIMITED, 4), (500, Reason.HUB_FAILS, 4), (503, Reason.HUB_FAILS, 4)),
        *((403, Reason.TOKEN_MISSING, 1), (404, Reason.MISSING, 1), (410, Reason.MISSING, 1)),
    ],
)
def test_a_hub_that_fails_is_asked_again_unless_that_can_not_help(
    on: On, status: int, reason: Reason, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    on.hub.status = status
    assert on.refused().reason is reason
    assert len(on.hub.requests) == caplog.text.count("tried again in 0.") + 1 == tries
    assert not on.places.volume.exists()
    # What others have put there is not doubted for that.
    snapshot = cached(on.places.volume, on.source)
    assert found(WANTED, on.places).place == snapshot


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://[bad", "http://a\1", "nonsense"]
)
def test_a_hub_that_is_not_there_is_reported(on: On, endpoint: str) -> None:
    with pytest.raises(Unavailable) as raised:
        obtain(WANTED, on.places, endpoint)
    assert raised.value.reason is Reason.UNREACHABLE
    assert not on.places.volume.exists()


def test_a_hub_that_hangs_is_given_up(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PATIENCE_S", 0.05)
    on.hub.hangs = True
    assert on.refused().reason is Reason.UNREACHABLE


def test_room_is_looked_for_before_much_is_sent(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    small = shutil.disk_usage("/")._replace(total=40_000, free=40_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    refused = on.refused()
    assert refused.reason is Reason.NO_SPACE
    sizes = f"40.1kB are to be downloaded to {on.places.volume}, where 40.0kB are free"
    assert sizes in refused.problem
    assert on.hub.sent == []
    nothing_trusted(on)


def test_what_is_there_already_needs_no_room(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    (on.obtain().place / "config.json").resolve().unlink()
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    same(on.obtain(), on.source)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported(on: On, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        refused = on.refused()
    assert (refused.reason, "BASE_PATH" in refused.remedy) == (Reason.NO_SPACE, True)
    assert os.strerror(number) in refused.problem
    nothing_trusted(on)
    same(on.obtain(), on.source)


@pytest.mark.parametrize("name", ["", "blobs", "snapshots", "refs", "refs/main"])
def test_a_place_that_can_not_be_written_to_is_reported(on: On, name: str) -> None:
    path = on.folder / name if name else on.places.volume
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "refs/main":
        path.mkdir()
    else:
        path.symlink_to(path)
    refused = on.refused()
    assert (refused.reason, "BASE_PATH" in refused.remedy) == (Reason.UNWRITABLE, True)
    assert str(on.places.volume) in refused.problem
    assert isinstance(resolve(WANTED, on.places), NotFound)
    path.rename(path.with_name("away"))
    same(on.obtain(), on.source)


def test_what_another_completed_is_not_asked_for(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Leases):
        """Taken when another worker has just completed the download."""

        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            cached(on.places.volume, on.source, listed=True)

    monkeypatch.setattr(download, "Leases", Late)
    same(on.obtain(), on.source)
    assert on.hub.requests == []
