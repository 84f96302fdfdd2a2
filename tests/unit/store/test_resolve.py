"""Which place a model is found in, and why others are passed over."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hub.caches import INDEX, NAME, SHARDS, WANTED, WEIGHTS, cached, found, model, passed
from support.hub.server import commit

from worker.store import BakedModel, Found, Kind, NotFound, Origin, Places, Wanted, resolve
from worker.store.places import baked_models, repository_folder


def test_the_platforms_cache_comes_before_the_volume_which_says_why_it_was_passed_over(
    places: Places, repository: Path
) -> None:
    snapshot, sha = cached(places.volume, repository, listed=True), commit(repository)
    why = f"platform's cache: it does not have {NAME}"
    result = found(WANTED, places)
    assert result == Found(WANTED, snapshot, Origin.VOLUME, sha, (why,))
    written = f"{NAME} from the volume, commit {sha[:12]}: {snapshot}; passed over: {why}"
    assert str(result) == written
    snapshot = cached(places.platform, repository)
    assert found(WANTED, places) == Found(WANTED, snapshot, Origin.PLATFORM, sha)


def test_a_home_is_expanded(
    places: Places, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(repository.parent))
    assert found(Wanted(f"~/{repository.name}"), places).place == repository


@pytest.mark.parametrize("name", ["~of-nobody/model", "x" * 5000, "a/" + "x" * 300, "a\0b"])
def test_what_can_be_no_name_is_nowhere(places: Places, name: str) -> None:
    places.volume.mkdir()
    assert "volume: " in passed(Wanted(name), places)


def test_one_cache_for_both_is_the_volume(places: Places, repository: Path) -> None:
    one = Places(places.volume, places.volume)
    assert len(passed(WANTED, one).split("; ")) == 1
    cached(places.volume, repository)
    assert found(WANTED, one).origin is Origin.VOLUME


def test_the_platform_may_use_lower_case_and_the_exact_name_comes_first(
    places: Places, repository: Path, tmp_path: Path
) -> None:
    lower = cached(places.platform, model(tmp_path / "other", SHARDS), name="org/name")
    assert found(Wanted("Org/Name"), places).place == lower
    exact = cached(places.platform, repository, name="Org/Name")
    assert found(Wanted("Org/Name"), places).place == exact


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
def test_a_revision_is_found_by_its_ref_and_by_its_commit(
    places: Places, revisions: dict[str, Path], revision: str
) -> None:
    snapshot = revisions[revision]
    for name in (revision, snapshot.name):
        result = found(replace(WANTED, revision=name), places)
        assert (result.place, result.commit) == (snapshot, snapshot.name)


def test_without_a_revision_it_is_main(places: Places, revisions: dict[str, Path]) -> None:
    assert found(WANTED, places).place == revisions["main"]
    (repository_folder(places.platform, NAME) / "refs" / "main").unlink()
    assert "it does not have revision main" in passed(WANTED, places)


@pytest.mark.parametrize(
    "revision", ["v9", "a" * 40, "../main", "../elsewhere", "/main", "refs", ".", "v1/x"]
)
def test_a_revision_that_is_not_there_is_passed_over(
    places: Places, revisions: dict[str, Path], revision: str
) -> None:
    # Outside of the refs.
    elsewhere = repository_folder(places.platform, NAME) / "elsewhere"
    elsewhere.write_text(revisions["main"].name)
    why = passed(replace(WANTED, revision=revision), places)
    assert f"platform's cache: it does not have revision {revision}" in why


@pytest.mark.parametrize("content", ["", "f" * 40, "../../elsewhere", "main", "\0", "\xff"])
def test_a_ref_that_leads_nowhere_is_passed_over(
    places: Places, revisions: dict[str, Path], content: str
) -> None:
    ref = repository_folder(places.platform, NAME) / "refs" / "main"
    ref.write_bytes(content.encode("latin-1"))
    assert "it does not have revision main" in passed(WANTED, places)
    ref.write_text(f"{revisions['v1'].name}\n")
    assert found(WANTED, places).place == revisions["v1"]


@pytest.mark.parametrize(
    ("names", "has_index", "lacking"),
    [
        (SHARDS, True, SHARDS[0]),
        (SHARDS, False, SHARDS[0]),
        (SHARDS, True, "config.json"),
        # The parts say how many they are.
        (["a-00001-of-00002.bin", "a-00002-of-00002.bin"], False, "a-00002-of-00002.bin"),
    ],
)
def test_a_platforms_cache_that_lacks_something_is_passed_over(
    places: Places, tmp_path: Path, names: list[str], has_index: bool, lacking: str
) -> None:
    repository = model(tmp_path / "source", names)
    if not has_index:
        (repository / INDEX).unlink()
    snapshot = cached(places.platform, repository)
    assert found(WANTED, places).place == snapshot
    (snapshot / lacking).unlink()
    assert f"platform's cache: {lacking} is missing" in passed(WANTED, places)


def test_a_cache_without_whole_weights_is_passed_over(places: Places, repository: Path) -> None:
    blob = (cached(places.platform, repository) / WEIGHTS).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert f"platform's cache: {WEIGHTS} is cut off" in passed(WANTED, places)
    blob.unlink()
    assert "there is no model in it" in passed(WANTED, places)


def test_a_loop_of_links_is_passed_over(places: Places, repository: Path) -> None:
    snapshot = cached(places.volume, repository, listed=True)
    places.platform.mkdir()
    folder = repository_folder(places.platform, NAME)
    folder.symlink_to(folder)
    assert found(WANTED, places).place == snapshot
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(snapshot / WEIGHTS)
    assert f"volume: {WEIGHTS} is missing" in passed(WANTED, places)


def test_a_volume_that_is_no_directory_is_passed_over(places: Places) -> None:
    places.volume.touch()
    assert "volume: it does not have" in passed(WANTED, places)
    places.volume.unlink()
    places.volume.symlink_to(places.volume)
    assert "volume: it does not have" in passed(WANTED, places)


AT_V1 = replace(WANTED, revision="v1")


@pytest.fixture
def baked(tmp_path: Path, repository: Path) -> BakedModel:
    snapshot = cached(tmp_path / "image", repository, listed=True)
    return BakedModel(NAME, "v1", commit(repository), snapshot)


@pytest.fixture
def with_image(places: Places, baked: BakedModel, repository: Path) -> Places:
    """An image and a volume with the same model."""
    cached(places.volume, repository, revision="v1", listed=True)
    return replace(places, baked=(baked,))


def test_what_the_build_wrote_is_read(tmp_path: Path, baked: BakedModel) -> None:
    written = tmp_path / "args.json"
    entry = {**baked.__dict__, "place": str(baked.place)}
    unnamed = {**entry, "revision": None}
    written.write_text(json.dumps({"settings": {"MODEL_NAME": NAME}, "models": [entry, unnamed]}))
    assert baked_models(written) == (baked, replace(baked, revision=None))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"MODEL_NAME": "org/name"}', '{"models": [{"model": "x"}]}']
)
def test_an_image_without_a_model_has_none(tmp_path: Path, content: str) -> None:
    assert baked_models(tmp_path / "args.json") == ()
    (tmp_path / "args.json").write_text(content)
    assert baked_models(tmp_path / "args.json") == ()


@pytest.mark.parametrize(
    ("of_image", "revision"),
    [("v1", "v1"), ("v1", "its commit"), (None, "main"), ("main", None), (None, None)],
)
def test_the_image_comes_before_caches(
    with_image: Places, baked: BakedModel, of_image: str | None, revision: str | None
) -> None:
    wanted = replace(WANTED, revision=baked.commit if revision == "its commit" else revision)
    others = (replace(baked, model="org/other"), replace(baked, revision="v2"))
    image = replace(with_image, baked=(*others, replace(baked, revision=of_image)))
    assert resolve(wanted, image) == Found(wanted, baked.place, Origin.BAKED, baked.commit)


@pytest.mark.parametrize("changes", [{}, {"revision": "v2"}, {"model": "org/other"}])
def test_what_the_image_has_instead_is_said(
    with_image: Places, baked: BakedModel, changes: dict[str, Any]
) -> None:
    image = replace(with_image, baked=(baked, replace(baked, revision="v3")))
    result = resolve(replace(WANTED, **changes), image)
    assert isinstance(result, NotFound)
    assert result.passed[0] == f"image: it holds {NAME}@v1, {NAME}@v3"


def test_a_directory_comes_first(
    with_image: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / NAME)
    assert found(AT_V1, with_image) == Found(AT_V1, Path(NAME), Origin.DIRECTORY)


def test_a_broken_or_hidden_image_is_passed_over(with_image: Places, baked: BakedModel) -> None:
    (baked.place / WEIGHTS).unlink()
    result = found(AT_V1, with_image)
    assert (result.origin, result.passed[0]) == (Origin.VOLUME, f"image: {WEIGHTS} is missing")
    baked.place.rename(baked.place.with_name("hidden"))
    why = f"image: {baked.place} is gone, or hidden by what is mounted over it"
    assert found(AT_V1, with_image).passed[0] == why


def test_code_is_where_the_libraries_look_for_it_or_nowhere(places: Places, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").touch()
    snapshot = cached(places.platform, tmp_path / "code")
    image = replace(places, baked=(BakedModel(NAME, None, snapshot.name, snapshot),))
    code = Wanted(NAME, kind=Kind.CODE, code=True, by_name=True)
    assert not isinstance(resolve(code, image), Found)
    assert found(replace(code, by_name=False), image).origin is Origin.BAKED
    cached(places.volume, tmp_path / "code")
    assert found(code, image).origin is Origin.VOLUME
