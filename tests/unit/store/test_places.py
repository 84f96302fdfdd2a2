"""The search: the places, the completeness of a snapshot by its files, and by its manifest."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hub.caches import (
    ARTIFACT,
    INDEX,
    NAME,
    SHARDS,
    WEIGHTS,
    fill_cache,
    locate,
    make_model,
    skip_reasons,
)
from support.hub.server import commit_id

from worker.store import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    BakedModel,
    Origin,
    Places,
    UnlocatedArtifact,
    manifest,
    resolve_on_disk,
)
from worker.store.manifest import read_sizes
from worker.store.places import read_baked_models, repository_folder


def test_the_platforms_cache_precedes_the_volume_and_a_skipped_place_is_explained(
    places: Places, repository: Path
) -> None:
    snapshot, sha = fill_cache(places.volume, repository, with_manifest=True), commit_id(repository)
    why = f"platform's cache: it does not have {NAME}"
    result = locate(ARTIFACT, places)
    assert result == ArtifactLocation(ARTIFACT, snapshot, Origin.VOLUME, sha, (why,))
    text = f"{NAME} from the volume, commit {sha[:12]}: {snapshot}; skipped: {why}"
    assert str(result) == text
    snapshot = fill_cache(places.platform, repository)
    assert locate(ARTIFACT, places) == ArtifactLocation(ARTIFACT, snapshot, Origin.PLATFORM, sha)


def test_a_home_directory_is_expanded(
    places: Places, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(repository.parent))
    assert locate(Artifact(f"~/{repository.name}"), places).directory == repository


@pytest.mark.parametrize("name", ["~of-nobody/model", "x" * 5000, "a/" + "x" * 300, "a\0b"])
def test_an_impossible_name_is_not_found(places: Places, name: str) -> None:
    places.volume.mkdir()
    assert "volume: " in skip_reasons(Artifact(name), places)


def test_one_cache_for_platform_and_volume_counts_as_the_volume(
    places: Places, repository: Path
) -> None:
    one = Places(places.volume, places.volume)
    assert len(skip_reasons(ARTIFACT, one).split("; ")) == 1
    fill_cache(places.volume, repository)
    assert locate(ARTIFACT, one).origin is Origin.VOLUME


def test_the_platform_may_use_lower_case_but_the_exact_name_is_preferred(
    places: Places, repository: Path, tmp_path: Path
) -> None:
    lower = fill_cache(places.platform, make_model(tmp_path / "other", SHARDS), name="org/name")
    assert locate(Artifact("Org/Name"), places).directory == lower
    exact = fill_cache(places.platform, repository, name="Org/Name")
    assert locate(Artifact("Org/Name"), places).directory == exact


@pytest.fixture
def revisions(places: Places, tmp_path: Path) -> dict[str, Path]:
    """Snapshots of three revisions; main is not the newest."""
    snapshots = {}
    for number, revision in enumerate(["v1", "main", "refs/pr/7"]):
        state = make_model(tmp_path / f"state{number}")
        (state / "config.json").write_text(f'{{"state": {number}}}')
        snapshots[revision] = fill_cache(places.platform, state, revision=revision)
    return snapshots


@pytest.mark.parametrize("revision", ["v1", "main", "refs/pr/7"])
def test_a_revision_is_found_by_its_ref_and_by_its_commit(
    places: Places, revisions: dict[str, Path], revision: str
) -> None:
    snapshot = revisions[revision]
    for name in (revision, snapshot.name):
        result = locate(replace(ARTIFACT, revision=name), places)
        assert (result.directory, result.commit) == (snapshot, snapshot.name)


def test_main_is_the_default_revision(places: Places, revisions: dict[str, Path]) -> None:
    assert locate(ARTIFACT, places).directory == revisions["main"]
    (repository_folder(places.platform, NAME) / "refs" / "main").unlink()
    assert "it does not have revision main" in skip_reasons(ARTIFACT, places)


@pytest.mark.parametrize(
    "revision", ["v9", "a" * 40, "../main", "../elsewhere", "/main", "refs", ".", "v1/x"]
)
def test_a_place_without_the_revision_is_skipped(
    places: Places, revisions: dict[str, Path], revision: str
) -> None:
    # A file outside the folder of refs.
    elsewhere = repository_folder(places.platform, NAME) / "elsewhere"
    elsewhere.write_text(revisions["main"].name)
    why = skip_reasons(replace(ARTIFACT, revision=revision), places)
    assert f"platform's cache: it does not have revision {revision}" in why


@pytest.mark.parametrize("content", ["", "f" * 40, "../../elsewhere", "main", "\0", "\xff"])
def test_a_ref_to_no_snapshot_is_skipped(
    places: Places, revisions: dict[str, Path], content: str
) -> None:
    ref = repository_folder(places.platform, NAME) / "refs" / "main"
    ref.write_bytes(content.encode("latin-1"))
    assert "it does not have revision main" in skip_reasons(ARTIFACT, places)
    ref.write_text(f"{revisions['v1'].name}\n")
    assert locate(ARTIFACT, places).directory == revisions["v1"]


@pytest.mark.parametrize(
    ("names", "has_index", "missing"),
    [
        (SHARDS, True, SHARDS[0]),
        (SHARDS, False, SHARDS[0]),
        (SHARDS, True, "config.json"),
        # The names of shards contain their number.
        (["a-00001-of-00002.bin", "a-00002-of-00002.bin"], False, "a-00002-of-00002.bin"),
    ],
)
def test_an_incomplete_platform_cache_is_skipped(
    places: Places, tmp_path: Path, names: list[str], has_index: bool, missing: str
) -> None:
    repository = make_model(tmp_path / "source", names)
    if not has_index:
        (repository / INDEX).unlink()
    snapshot = fill_cache(places.platform, repository)
    assert locate(ARTIFACT, places).directory == snapshot
    (snapshot / missing).unlink()
    assert f"platform's cache: {missing} is missing" in skip_reasons(ARTIFACT, places)


def test_a_cache_with_incomplete_weights_is_skipped(places: Places, repository: Path) -> None:
    blob = (fill_cache(places.platform, repository) / WEIGHTS).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert f"platform's cache: {WEIGHTS} is cut off" in skip_reasons(ARTIFACT, places)
    blob.unlink()
    assert "there is no model in it" in skip_reasons(ARTIFACT, places)


def test_a_loop_of_links_is_skipped(places: Places, repository: Path) -> None:
    snapshot = fill_cache(places.volume, repository, with_manifest=True)
    places.platform.mkdir()
    folder = repository_folder(places.platform, NAME)
    folder.symlink_to(folder)
    assert locate(ARTIFACT, places).directory == snapshot
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(snapshot / WEIGHTS)
    assert f"volume: {WEIGHTS} is missing" in skip_reasons(ARTIFACT, places)


COMMIT = "c" * 40


@pytest.mark.parametrize("name", [NAME, NAME.upper()])
@pytest.mark.parametrize("revision", [COMMIT, None])
def test_the_model_store_of_the_platform_precedes_its_cache(
    places: Places, repository: Path, name: str, revision: str | None
) -> None:
    """Without a revision, the only one is used."""
    fill_cache(places.platform, repository, name)
    stored = make_model(places.model_store / NAME / COMMIT)
    artifact = Artifact(name, revision)
    assert locate(artifact, places) == ArtifactLocation(
        artifact, stored, Origin.MODEL_STORE, COMMIT
    )


def test_the_model_store_may_have_several_revisions(places: Places) -> None:
    revisions = {name: make_model(places.model_store / NAME / name) for name in (COMMIT, "v1")}
    for name, commit in ((COMMIT, COMMIT), ("v1", None)):
        found = locate(replace(ARTIFACT, revision=name), places)
        assert (found.directory, found.commit) == (revisions[name], commit)
    assert "model store: it does not have revision main" in skip_reasons(ARTIFACT, places)
    main = make_model(places.model_store / NAME / "main")
    assert locate(ARTIFACT, places).directory == main


@pytest.mark.parametrize("revision", ["v9", "a" * 40, ".", f"../name/{COMMIT}"])
def test_a_model_store_without_the_revision_is_skipped(places: Places, revision: str) -> None:
    make_model(places.model_store / NAME / COMMIT)
    why = skip_reasons(replace(ARTIFACT, revision=revision), places)
    assert f"platform's model store: it does not have revision {revision}" in why


def test_an_incomplete_model_store_is_skipped(
    places: Places, repository: Path, tmp_path: Path
) -> None:
    stored = make_model(places.model_store / NAME / COMMIT, SHARDS)
    (stored / SHARDS[1]).unlink()
    snapshot = fill_cache(places.platform, repository)
    found = locate(ARTIFACT, places)
    assert (found.directory, found.origin) == (snapshot, Origin.PLATFORM)
    assert found.skipped == (f"platform's model store: {SHARDS[1]} is missing",)


@pytest.mark.parametrize("name", ["org/other", "org", "../store/org/name"])
def test_a_model_store_without_the_model_is_skipped(places: Places, name: str) -> None:
    make_model(places.model_store / NAME / COMMIT)
    assert "platform's model store: " in skip_reasons(Artifact(name), places)


def test_a_volume_that_is_no_directory_is_skipped(places: Places) -> None:
    places.volume.touch()
    assert "volume: it does not have" in skip_reasons(ARTIFACT, places)
    places.volume.unlink()
    places.volume.symlink_to(places.volume)
    assert "volume: it does not have" in skip_reasons(ARTIFACT, places)


AT_V1 = replace(ARTIFACT, revision="v1")


@pytest.fixture
def baked_model(tmp_path: Path, repository: Path) -> BakedModel:
    snapshot = fill_cache(tmp_path / "image", repository, with_manifest=True)
    return BakedModel(NAME, "v1", commit_id(repository), snapshot)


@pytest.fixture
def places_with_image(places: Places, baked_model: BakedModel, repository: Path) -> Places:
    """Places where both the image and the volume have the same model."""
    fill_cache(places.volume, repository, revision="v1", with_manifest=True)
    return replace(places, baked=(baked_model,))


def test_the_file_that_the_build_wrote_is_read(tmp_path: Path, baked_model: BakedModel) -> None:
    file = tmp_path / "args.json"
    entry = {**baked_model.__dict__, "place": str(baked_model.place)}
    unnamed = {**entry, "revision": None}
    file.write_text(json.dumps({"settings": {"MODEL_NAME": NAME}, "models": [entry, unnamed]}))
    assert read_baked_models(file) == (baked_model, replace(baked_model, revision=None))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"MODEL_NAME": "org/name"}', '{"models": [{"model": "x"}]}']
)
def test_a_missing_or_malformed_file_means_no_baked_models(tmp_path: Path, content: str) -> None:
    assert read_baked_models(tmp_path / "args.json") == ()
    (tmp_path / "args.json").write_text(content)
    assert read_baked_models(tmp_path / "args.json") == ()


@pytest.mark.parametrize(
    ("image_revision", "revision"),
    [("v1", "v1"), ("v1", "its commit"), (None, "main"), ("main", None), (None, None)],
)
def test_the_image_comes_before_caches(
    places_with_image: Places,
    baked_model: BakedModel,
    image_revision: str | None,
    revision: str | None,
) -> None:
    artifact = replace(
        ARTIFACT, revision=baked_model.commit if revision == "its commit" else revision
    )
    others = (replace(baked_model, model="org/other"), replace(baked_model, revision="v2"))
    image = replace(
        places_with_image, baked=(*others, replace(baked_model, revision=image_revision))
    )
    assert resolve_on_disk(artifact, image) == ArtifactLocation(
        artifact, baked_model.place, Origin.BAKED, baked_model.commit
    )


@pytest.mark.parametrize("changes", [{}, {"revision": "v2"}, {"model": "org/other"}])
def test_the_other_models_of_the_image_are_listed(
    places_with_image: Places, baked_model: BakedModel, changes: dict[str, Any]
) -> None:
    image = replace(places_with_image, baked=(baked_model, replace(baked_model, revision="v3")))
    result = resolve_on_disk(replace(ARTIFACT, **changes), image)
    assert isinstance(result, UnlocatedArtifact)
    assert result.skipped[0] == f"image: it contains {NAME}@v1, {NAME}@v3"


def test_a_local_directory_comes_first(
    places_with_image: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / NAME)
    assert locate(AT_V1, places_with_image) == ArtifactLocation(AT_V1, Path(NAME), Origin.DIRECTORY)


def test_a_broken_or_hidden_image_is_skipped(
    places_with_image: Places, baked_model: BakedModel
) -> None:
    (baked_model.place / WEIGHTS).unlink()
    result = locate(AT_V1, places_with_image)
    assert (result.origin, result.skipped[0]) == (Origin.VOLUME, f"image: {WEIGHTS} is missing")
    baked_model.place.rename(baked_model.place.with_name("hidden"))
    why = f"image: {baked_model.place} is missing, or hidden by a mount over it"
    assert locate(AT_V1, places_with_image).skipped[0] == why


def test_code_that_is_loaded_by_name_must_be_where_the_libraries_look(
    places: Places, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").touch()
    snapshot = fill_cache(places.platform, tmp_path / "code")
    image = replace(places, baked=(BakedModel(NAME, None, snapshot.name, snapshot),))
    code = Artifact(NAME, kind=ArtifactKind.CODE, code=True, loaded_by_name=True)
    assert not isinstance(resolve_on_disk(code, image), ArtifactLocation)
    assert locate(replace(code, loaded_by_name=False), image).origin is Origin.BAKED
    (places.model_store / NAME / COMMIT).mkdir(parents=True)
    (places.model_store / NAME / COMMIT / "own.py").touch()
    assert not isinstance(resolve_on_disk(code, image), ArtifactLocation)
    fill_cache(places.volume, tmp_path / "code")
    assert locate(code, image).origin is Origin.VOLUME


# Completeness of a snapshot, by its manifest and the files that an artifact needs:


@pytest.fixture
def folder(places: Places) -> Path:
    """The repository's folder on the volume."""
    return repository_folder(places.volume, NAME)


def test_a_snapshot_with_an_incomplete_download_is_not_trusted(
    places: Places, repository: Path, folder: Path
) -> None:
    snapshot = fill_cache(places.volume, repository)
    # A download of another commit.
    manifest.mark_download_started(folder, "0" * 40)
    assert locate(ARTIFACT, places).directory == snapshot
    manifest.mark_download_started(folder, snapshot.name)
    why = f"volume: the download of commit {snapshot.name[:12]} has not been completed"
    assert why in skip_reasons(ARTIFACT, places)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"config.json": "large"}'])
def test_an_unreadable_manifest_counts_as_missing(
    places: Places, repository: Path, folder: Path, content: str
) -> None:
    fill_cache(places.volume, repository, with_manifest=True)
    (folder / ".worker" / "manifests" / f"{commit_id(repository)}.json").write_text(content)
    assert not read_sizes(folder, commit_id(repository))
    assert "has not been completed" in skip_reasons(ARTIFACT, places)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_with_a_wrong_size_is_noticed(places: Places, repository: Path, change: int) -> None:
    blob = (fill_cache(places.volume, repository, with_manifest=True) / "tokenizer.json").resolve()
    blob.write_bytes((blob.read_bytes() + b" ")[: blob.stat().st_size + change])
    assert "tokenizer.json is not as large as it should be" in skip_reasons(ARTIFACT, places)


TOKENIZER: dict[str, Any] = {"kind": ArtifactKind.TOKENIZER, "load_format": "dummy"}


@pytest.mark.parametrize(
    ("extra", "changes", "removed", "missing"),
    [
        *(((), {}, name, name) for name in (SHARDS[1], INDEX, "tokenizer.json")),
        # Files that aren't loaded may be missing.
        *(((name,), {}, name, None) for name in ("README.md", "model.bin", "onnx/model.onnx")),
        *((("own.py",), {"code": code}, "own.py", "own.py" if code else None) for code in (0, 1)),
        (("model.pt",), {}, "model.pt", None),
        (("model.pt",), {"load_format": "pt"}, "model.pt", "model.pt"),
        (("model.pt",), {"load_format": "pt"}, SHARDS[0], None),
        ((), TOKENIZER, SHARDS[0], None),
        ((), TOKENIZER, "tokenizer.json", "tokenizer.json"),
        ((), {"load_format": "dummy"}, SHARDS[0], None),
    ],
)
def test_a_missing_file_of_the_manifest_is_noticed_if_it_is_loaded(
    places: Places,
    tmp_path: Path,
    extra: tuple[str, ...],
    changes: dict[str, Any],
    removed: str,
    missing: str | None,
) -> None:
    repository = make_model(tmp_path / "source", SHARDS)
    for name in extra:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(b"0")
    snapshot = fill_cache(places.volume, repository, with_manifest=True)
    artifact = replace(ARTIFACT, **changes)
    assert locate(artifact, places).directory == snapshot
    (snapshot / removed).unlink()
    if missing is None:
        assert locate(artifact, places).directory == snapshot
    else:
        assert f"volume: {missing} is missing" in skip_reasons(artifact, places)


def test_a_manifest_without_loadable_files_is_skipped(places: Places, repository: Path) -> None:
    (repository / WEIGHTS).unlink()
    fill_cache(places.volume, repository, with_manifest=True)
    assert "there is no model in it" in skip_reasons(ARTIFACT, places)


def test_each_kind_of_artifact_needs_its_own_files_without_a_manifest(
    places: Places, repository: Path
) -> None:
    snapshot = fill_cache(places.platform, repository)
    tokenizer, adapter = (
        replace(ARTIFACT, **TOKENIZER),
        replace(ARTIFACT, kind=ArtifactKind.ADAPTER),
    )
    (snapshot / "config.json").unlink()
    assert "config.json is missing" in skip_reasons(ARTIFACT, places)
    assert locate(adapter, places).directory == snapshot
    (snapshot / WEIGHTS).unlink()
    assert "there is no model in it" in skip_reasons(adapter, places)
    assert locate(tokenizer, places).directory == snapshot
    (snapshot / "tokenizer.json").unlink()
    assert "there is no tokenizer in it" in skip_reasons(tokenizer, places)
