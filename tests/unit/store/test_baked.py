"""A model in the image wins over every cache, unless it is another one, or hidden."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.hub.caches import NAME, WANTED, WEIGHTS, cached, model
from support.hub.server import commit

from worker.store import BakedModel, Found, NotFound, Origin, Places, resolve
from worker.store.places import baked_models


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return model(tmp_path / "source")


@pytest.fixture
def baked(tmp_path: Path, source: Path) -> BakedModel:
    return BakedModel(NAME, "v1", commit(source), cached(tmp_path / "image", source, listed=True))


@pytest.fixture
def places(tmp_path: Path, baked: BakedModel, source: Path) -> Places:
    """An image and a volume with the same model."""
    cached(tmp_path / "volume", source, revision="v1", listed=True)
    return Places(tmp_path / "volume", tmp_path / "platform", (baked,))


AT_V1 = replace(WANTED, revision="v1")


def test_what_the_build_wrote_is_read(tmp_path: Path, baked: BakedModel) -> None:
    written = tmp_path / "args.json"
    entry = {**baked.__dict__, "place": str(baked.place)}
    unnamed = {**entry, "revision": None}
    written.write_text(json.dumps({"settings": {"MODEL_NAME": NAME}, "models": [entry, unnamed]}))
    assert baked_models(written) == (baked, replace(baked, revision=None))


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '{"MODEL_NAME": "org/name"}', '{"models": [{"model": "x"}]}']
)
def test_an_image_without_a_model_has_none(tmp_path: Path, content: str | None) -> None:
    written = tmp_path / "args.json"
    if content is not None:
        written.write_text(content)
    assert baked_models(written) == ()


@pytest.mark.parametrize("by_commit", [False, True])
def test_the_image_comes_before_every_cache(
    places: Places, baked: BakedModel, by_commit: bool
) -> None:
    wanted = replace(WANTED, revision=baked.commit if by_commit else "v1")
    assert resolve(wanted, places) == Found(wanted, baked.place, Origin.BAKED, baked.commit)


def test_a_directory_comes_before_the_image(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / NAME)
    found = resolve(AT_V1, places)
    assert isinstance(found, Found)
    assert found.origin is Origin.DIRECTORY


@pytest.mark.parametrize("revision", [None, "main"])
def test_without_a_revision_both_mean_main(
    places: Places, baked: BakedModel, revision: str | None
) -> None:
    for named in (None, "main"):
        image = replace(places, baked=(replace(baked, revision=named),))
        found = resolve(replace(WANTED, revision=revision), image)
        assert isinstance(found, Found)
        assert found.origin is Origin.BAKED


@pytest.mark.parametrize(
    "wanted", [WANTED, replace(WANTED, revision="v2"), replace(AT_V1, model="org/other")]
)
def test_another_revision_or_model_than_the_images_is_said(places: Places, wanted: object) -> None:
    result = resolve(wanted, places)  # type: ignore[arg-type]  # what pytest hands over has no type
    assert isinstance(result, NotFound)
    assert result.passed[0] == f"image: it holds {NAME}@v1"


def test_of_several_models_in_the_image_the_right_one_is_taken(
    places: Places, baked: BakedModel
) -> None:
    others = (replace(baked, model="org/other"), replace(baked, revision="v2"))
    result = resolve(AT_V1, replace(places, baked=(*others, baked)))
    assert isinstance(result, Found)
    assert result.place == baked.place
    result = resolve(replace(WANTED, revision="v9"), replace(places, baked=(*others, baked)))
    assert result.passed[0] == f"image: it holds org/other@v1, {NAME}@v2, {NAME}@v1"


def test_an_image_hidden_by_a_mount_is_named(places: Places, baked: BakedModel) -> None:
    hidden = baked.place.with_name("hidden")
    baked.place.rename(hidden)
    found = resolve(AT_V1, places)
    assert isinstance(found, Found)
    assert found.origin is Origin.VOLUME
    assert found.passed[0] == (
        f"image: {baked.place} is gone, or hidden by what is mounted over it"
    )


def test_an_image_that_is_not_whole_is_passed_over(places: Places, baked: BakedModel) -> None:
    (baked.place / WEIGHTS).unlink()
    found = resolve(AT_V1, places)
    assert isinstance(found, Found)
    assert (found.origin, found.passed[0]) == (Origin.VOLUME, f"image: {WEIGHTS} is missing")
