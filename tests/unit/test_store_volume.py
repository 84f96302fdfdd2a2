"""What downloads do to what lies on the volume already, and what they leave when they fail."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub import commit
from stored import NAME, SHARDS, WANTED, On, cached, found, hub_and_volume, model, passed

from worker.store import Found, Kind, Origin, Places, Reason, Wanted, manifest, resolve
from worker.store.places import folder


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    with hub_and_volume(tmp_path, monkeypatch) as running:
        yield running


def test_an_attempt_that_fails_casts_no_doubt_on_what_others_have_put_there(on: On) -> None:
    snapshot = cached(on.places.volume, on.source)
    on.hub.status = 503
    assert on.obtain(newest=True).place == snapshot
    on.hub.status = None
    assert on.refused(replace(WANTED, revision="none")).reason is Reason.REVISION_MISSING
    assert found(WANTED, on.places).place == snapshot


def test_of_a_repository_that_is_refused_nothing_is_left(on: On) -> None:
    on.hub.repositories[NAME].gated = True
    assert on.refused().reason is Reason.TOKEN_MISSING
    assert not on.places.volume.exists()


@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, Reason.TOKEN_MISSING), (404, Reason.MISSING), (410, Reason.MISSING)],
)
def test_a_refusal_without_a_reason_is_told_by_its_status(
    on: On, status: int, reason: Reason
) -> None:
    on.hub.status = status
    assert on.refused().reason is reason
    assert len(on.hub.requests) == 1


def test_a_branch_leads_to_an_older_commit_until_the_new_one_is_complete(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = on.obtain()
    (on.source / "config.json").write_text('{"model_type": "llama", "new": 1}')

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(manifest, "write", full)
        assert on.refused(newest=True).reason is Reason.NO_SPACE
    assert found(WANTED, on.places).commit == before.commit
    assert on.obtain(newest=True).commit == commit(on.source) != before.commit


def test_a_folder_in_lower_case_is_completed_rather_than_doubled(on: On) -> None:
    on.hub.add("Org/Name", on.source)
    lower = cached(on.places.volume, on.source)
    (lower / "tokenizer.json").unlink()
    manifest.begin(folder(on.places.volume, NAME), lower.name)
    there = on.obtain(Wanted("Org/Name"))
    assert there.place == lower
    assert [each.name for each in on.places.volume.iterdir()] == ["models--org--name"]
    assert [each.path for each in on.hub.sent] == []


@pytest.mark.parametrize(
    "names", [SHARDS, ["a-00001-of-00002.bin", "a-00002-of-00002.bin"]], ids=["safetensors", "bin"]
)
def test_without_an_index_the_parts_say_how_many_they_are(tmp_path: Path, names: list[str]) -> None:
    places = Places(tmp_path / "volume", tmp_path / "platform")
    source = model(tmp_path / "source", names)
    (source / "model.safetensors.index.json").unlink(missing_ok=True)
    snapshot = cached(places.platform, source)
    assert found(WANTED, places).place == snapshot
    (snapshot / names[1]).unlink()
    assert f"{names[1]} is missing" in passed(WANTED, places)


def test_code_is_where_the_libraries_look_for_it_or_nowhere(tmp_path: Path) -> None:
    places = Places(tmp_path / "volume", tmp_path / "platform")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "own.py").write_text("")
    cached(places.platform, tmp_path / "source")
    code = Wanted(NAME, kind=Kind.CODE, code=True, by_name=True)
    assert not isinstance(resolve(code, places), Found)
    shutil.copytree(places.platform, places.volume, symlinks=True)
    assert found(code, places).origin is Origin.VOLUME
