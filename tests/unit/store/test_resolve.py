"""Which place a model is found in, and why others are passed over."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.hub.caches import INDEX, NAME, SHARDS, WANTED, WEIGHTS, cached, found, model, passed
from support.hub.server import commit

from worker.store import Found, Origin, Places, Wanted
from worker.store.places import repository_folder

SOURCES = ROOT / "src"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return model(tmp_path / "source")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "volume", tmp_path / "platform")


def test_the_platforms_cache_comes_before_the_volume(places: Places, source: Path) -> None:
    snapshot = cached(places.platform, source)
    cached(places.volume, source, listed=True)
    assert found(WANTED, places) == Found(WANTED, snapshot, Origin.PLATFORM, commit(source))


def test_the_volume_is_next_and_says_why_the_platform_was_passed_over(
    places: Places, source: Path
) -> None:
    snapshot = cached(places.volume, source, listed=True)
    model = found(WANTED, places)
    assert (model.place, model.origin) == (snapshot, Origin.VOLUME)
    assert model.passed == (f"platform's cache: it does not have {NAME}",)
    assert str(model) == (
        f"{NAME} from the volume, commit {commit(source)[:12]}: {snapshot}; "
        f"passed over: platform's cache: it does not have {NAME}"
    )


def test_a_directory_comes_first(
    places: Places, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cached(places.platform, source)
    model(tmp_path / NAME)
    assert found(WANTED, places) == Found(WANTED, Path(NAME), Origin.DIRECTORY)


def test_a_home_is_expanded(places: Places, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    assert found(Wanted(f"~/{source.name}"), places).place == source


@pytest.mark.parametrize("model", ["~of-nobody/model", "x" * 5000, "a/" + "x" * 300, "a\0b"])
def test_what_can_be_no_name_is_nowhere(places: Places, model: str) -> None:
    places.volume.mkdir()
    assert "volume: " in passed(Wanted(model), places)


def test_where_the_platforms_cache_is_the_volume_it_is_looked_at_once(source: Path) -> None:
    cache = source.parent / "cache"
    assert len(passed(WANTED, Places(cache, cache)).split("; ")) == 1
    cached(cache, source)
    assert found(WANTED, Places(cache, cache)).origin is Origin.VOLUME


def test_the_platform_may_use_lower_case(places: Places, source: Path) -> None:
    snapshot = cached(places.platform, source, name="org/name")
    assert found(Wanted("Org/Name"), places).place == snapshot


def test_the_exact_name_comes_before_lower_case(places: Places, tmp_path: Path) -> None:
    cached(places.platform, model(tmp_path / "other", SHARDS), name="org/name")
    snapshot = cached(places.platform, model(tmp_path / "source"), name="Org/Name")
    assert found(Wanted("Org/Name"), places).place == snapshot


@pytest.fixture
def revisions(places: Places, tmp_path: Path) -> dict[str, Path]:
    """Snapshots of three revisions; main is not the newest."""
    made = {}
    for number, revision in enumerate(["v1", "main", "refs/pr/7"]):
        state = model(tmp_path / f"state{number}")
        (state / "config.json").write_text(f'{{"state": {number}}}')
        made[revision] = cached(places.platform, state, revision=revision)
    return made


@pytest.mark.parametrize("revision", ["v1", "main", "refs/pr/7"])
def test_a_revision_is_found_by_its_ref(
    places: Places, revisions: dict[str, Path], revision: str
) -> None:
    assert found(replace(WANTED, revision=revision), places).place == revisions[revision]


def test_a_revision_is_found_by_its_commit(places: Places, revisions: dict[str, Path]) -> None:
    for snapshot in revisions.values():
        model = found(replace(WANTED, revision=snapshot.name), places)
        assert (model.place, model.commit) == (snapshot, snapshot.name)


def test_without_a_revision_it_is_main_and_never_the_last_one(
    places: Places, revisions: dict[str, Path]
) -> None:
    assert found(WANTED, places).place == revisions["main"]
    (repository_folder(places.platform, NAME) / "refs" / "main").unlink()
    assert "it does not have revision main" in passed(WANTED, places)


@pytest.mark.parametrize("revision", ["v9", "a" * 40, "../main", "/main", "refs", ".", "v1/x"])
def test_a_revision_that_is_not_there_is_passed_over(
    places: Places, revisions: dict[str, Path], revision: str
) -> None:
    why = passed(replace(WANTED, revision=revision), places)
    assert f"platform's cache: it does not have revision {revision}" in why


def test_a_revision_does_not_lead_out_of_the_refs(places: Places, source: Path) -> None:
    snapshot = cached(places.platform, source)
    (repository_folder(places.platform, NAME) / "elsewhere").write_text(snapshot.name)
    wanted = replace(WANTED, revision="../elsewhere")
    assert "it does not have revision ../elsewhere" in passed(wanted, places)


@pytest.mark.parametrize("content", ["", "f" * 40, "../../elsewhere", "main", "\0", "\xff"])
def test_a_ref_that_leads_nowhere_is_passed_over(
    places: Places, revisions: dict[str, Path], content: str
) -> None:
    ref = repository_folder(places.platform, NAME) / "refs" / "main"
    ref.write_bytes(content.encode("latin-1"))
    assert "it does not have revision main" in passed(WANTED, places)


def test_a_ref_may_end_in_a_line_break(places: Places, source: Path) -> None:
    snapshot = cached(places.platform, source)
    (repository_folder(places.platform, NAME) / "refs" / "main").write_text(f"{snapshot.name}\n")
    assert found(WANTED, places).place == snapshot


@pytest.mark.parametrize("lacking", [*SHARDS, "config.json"])
def test_a_platforms_cache_that_lacks_something_is_passed_over(
    places: Places, tmp_path: Path, lacking: str
) -> None:
    snapshot = cached(places.platform, model(tmp_path / "source", SHARDS))
    assert found(WANTED, places).place == snapshot
    (snapshot / lacking).unlink()
    assert f"platform's cache: {lacking} is missing" in passed(WANTED, places)


def test_a_platforms_cache_whose_blob_is_gone_is_passed_over(places: Places, source: Path) -> None:
    (cached(places.platform, source) / WEIGHTS).resolve().unlink()
    assert "there is no model in it" in passed(WANTED, places)


def test_a_platforms_cache_whose_weights_are_cut_off_is_passed_over(
    places: Places, source: Path
) -> None:
    blob = (cached(places.platform, source) / WEIGHTS).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert f"platform's cache: {WEIGHTS} is cut off" in passed(WANTED, places)


def test_files_outside_of_the_snapshot_are_never_looked_for(places: Places, source: Path) -> None:
    snapshot = cached(places.platform, source)
    outside = source.parent / "x.safetensors"
    outside.write_bytes((source / WEIGHTS).read_bytes())
    (snapshot / INDEX).write_text(json.dumps({"weight_map": {"a": str(outside)}}))
    assert f"{outside} is missing" in passed(WANTED, places)


@pytest.mark.parametrize("of_folder", [True, False])
def test_a_loop_of_links_is_passed_over(places: Places, source: Path, of_folder: bool) -> None:
    snapshot = cached(places.volume, source, listed=True)
    loop = repository_folder(places.platform, NAME) if of_folder else snapshot / WEIGHTS
    loop.parent.mkdir(parents=True, exist_ok=True)
    loop.unlink(missing_ok=True)
    loop.symlink_to(loop)
    if of_folder:
        assert found(WANTED, places).place == snapshot
    else:
        assert f"volume: {WEIGHTS} is missing" in passed(WANTED, places)


def test_a_folder_in_a_snapshot_that_leads_back_to_it_is_no_loop(
    places: Places, source: Path
) -> None:
    snapshot = cached(places.platform, source)
    (snapshot / "again").symlink_to(snapshot)
    assert found(WANTED, places).place == snapshot


@pytest.mark.parametrize("volume", ["file", "loop"])
def test_a_volume_that_is_no_directory_is_passed_over(source: Path, volume: str) -> None:
    place = source.parent / "volume"
    if volume == "file":
        place.touch()
    else:
        place.symlink_to(place)
    unreadable = Places(place, source.parent / "platform")
    assert "volume: it does not have" in passed(WANTED, unreadable)


def test_looking_imports_nothing_of_the_hubs_and_none_of_the_engines() -> None:
    program = (
        "import sys, worker.store, worker.store.fetching, worker.start.repositories\n"
        "print({'huggingface_hub', 'vllm', 'torch', 'httpx2'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
