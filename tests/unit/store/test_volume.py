"""What downloads do with existing files on the volume, and what they leave when they fail."""

import shutil
import threading
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from support.hub.caches import (
    NAME,
    SHARDS,
    WANTED,
    On,
    cached,
    found,
    hub_and_volume,
    model,
    passed,
    same,
)
from support.hub.server import commit

from worker.store import (
    BakedModel,
    Found,
    Kind,
    Origin,
    Places,
    Reason,
    Wanted,
    download,
    manifest,
    resolve,
)
from worker.store.download.transfer import Transfer
from worker.store.hub import listing
from worker.store.places import repository_folder


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
def test_a_refusal_without_a_reason_is_reported_with_its_status(
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
    manifest.mark_begun(repository_folder(on.places.volume, NAME), lower.name)
    model = on.obtain(Wanted("Org/Name"))
    assert model.place == lower
    assert [path.name for path in on.places.volume.iterdir()] == ["models--org--name"]
    assert [part.path for part in on.hub.sent] == []


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


def test_what_looks_whole_is_not_while_a_download_of_ours_has_not_ended(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The smallest file comes last, after all others.
    monkeypatch.setattr(download, "PARALLEL", 1)
    on.hub.wrong = {"tokenizer.json"}
    assert on.refused().reason is Reason.WRONG_CHECKSUM
    wanted = replace(WANTED, revision=commit(on.source))
    assert (on.folder / "snapshots" / commit(on.source) / "config.json").is_file()
    assert "has not been completed" in passed(wanted, on.places)


def test_code_in_the_image_is_not_where_the_libraries_look_for_it(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "own.py").write_text("")
    place = cached(tmp_path / "image", tmp_path / "source")
    baked = BakedModel(NAME, None, place.name, place)
    places = Places(tmp_path / "volume", tmp_path / "platform", (baked,))
    code = Wanted(NAME, kind=Kind.CODE, code=True)
    assert found(code, places).origin is Origin.BAKED
    assert not isinstance(resolve(replace(code, by_name=True), places), Found)


@pytest.mark.parametrize("sha", ["../../etc", "main", ""])
def test_a_commit_that_is_no_hash_makes_no_path(sha: str) -> None:
    class Api:
        endpoint = "http://hub"

        def model_info(self, *_: object, **__: object) -> Namespace:
            return Namespace(id=NAME, sha=sha, siblings=[], gated=False)

    with pytest.raises(ValueError, match="no hashes"):
        listing(Api(), WANTED)  # type: ignore[arg-type]  # what is asked of the hub's own


def test_who_was_overtaken_removes_nothing(tmp_path: Path) -> None:
    left = tmp_path / "blobs" / "0.partial"
    left.parent.mkdir()
    left.touch()
    stop = threading.Event()
    transfer = Transfer(HfApi(), NAME, "0" * 40, tmp_path, stop)
    stop.set()
    transfer.tidy()
    assert left.exists()
    stop.clear()
    transfer.tidy()
    assert not left.exists()


def test_who_is_overtaken_at_the_last_moment_finds_the_file_in_its_place(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def overtaken(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            rename(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    same(on.obtain(), on.source)
