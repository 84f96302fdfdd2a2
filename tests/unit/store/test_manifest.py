"""Whether a snapshot is complete: by its manifest, in the files that are wanted of it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.hub.caches import INDEX, NAME, SHARDS, WANTED, WEIGHTS, cached, found, model, passed
from support.hub.server import commit

from worker.store import Kind, Places, Wanted, manifest
from worker.store.manifest import read, write
from worker.store.places import repository_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return model(tmp_path / "source")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "volume", tmp_path / "platform")


def test_what_lies_beside_a_started_download_is_not_trusted(places: Places, source: Path) -> None:
    snapshot = cached(places.volume, source)
    assert found(WANTED, places).place == snapshot
    manifest.mark_begun(repository_folder(places.volume, NAME), commit(source))
    why = f"volume: the download of commit {commit(source)[:12]} has not been completed"
    assert why in passed(WANTED, places)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": "org/name"}'])
def test_a_manifest_that_can_not_be_read_counts_as_none(
    places: Places, source: Path, content: str
) -> None:
    cached(places.volume, source, listed=True)
    folder = repository_folder(places.volume, NAME)
    (folder / ".worker" / "manifests" / f"{commit(source)}.json").write_text(content)
    assert read(folder, commit(source)) is None
    assert "has not been completed" in passed(WANTED, places)


def test_a_manifest_vouches_for_its_own_commit_only(places: Places, tmp_path: Path) -> None:
    old = cached(places.volume, model(tmp_path / "old"), revision="old", listed=True)
    new = cached(places.volume, model(tmp_path / "new", SHARDS))
    manifest.mark_begun(repository_folder(places.volume, NAME), new.name)
    assert "has not been completed" in passed(WANTED, places)
    assert found(replace(WANTED, revision="old"), places).place == old


def test_a_download_that_was_begun_casts_no_doubt_on_another_commit(
    places: Places, source: Path
) -> None:
    snapshot = cached(places.platform, source)
    manifest.mark_begun(repository_folder(places.platform, NAME), "0" * 40)
    assert found(WANTED, places).place == snapshot


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_than_the_manifests_is_noticed(
    places: Places, source: Path, change: int
) -> None:
    blob = (cached(places.volume, source, listed=True) / "tokenizer.json").resolve()
    blob.write_bytes((blob.read_bytes() + b" ")[: blob.stat().st_size + change])
    assert "tokenizer.json is not as large as it should be" in passed(WANTED, places)


@pytest.mark.parametrize("lacking", [SHARDS[1], INDEX, "tokenizer.json"])
def test_a_file_of_the_manifest_that_is_gone_is_noticed(
    places: Places, tmp_path: Path, lacking: str
) -> None:
    snapshot = cached(places.volume, model(tmp_path / "source", SHARDS), listed=True)
    assert found(WANTED, places).place == snapshot
    (snapshot / lacking).unlink()
    assert f"volume: {lacking} is missing" in passed(WANTED, places)


def test_what_is_not_loaded_may_be_missing(places: Places, source: Path) -> None:
    for name in ("README.md", "pytorch_model.bin", "onnx/model.onnx"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"0")
    snapshot = cached(places.volume, source, listed=True)
    for name in ("README.md", "pytorch_model.bin", "onnx/model.onnx"):
        (snapshot / name).unlink()
    assert found(WANTED, places).place == snapshot


def test_code_that_is_trusted_later_is_then_missed(places: Places, source: Path) -> None:
    (source / "modeling_own.py").write_text("")
    snapshot = cached(places.volume, source, listed=True)
    (snapshot / "modeling_own.py").unlink()
    assert found(WANTED, places).place == snapshot
    assert "modeling_own.py is missing" in passed(replace(WANTED, code=True), places)


def test_a_manifest_of_nothing_to_load_is_passed_over(places: Places, source: Path) -> None:
    (source / WEIGHTS).unlink()
    cached(places.volume, source, listed=True)
    assert "there is no model in it" in passed(WANTED, places)
    assert found(replace(WANTED, kind=Kind.TOKENIZER, load_format="dummy"), places)
    assert found(replace(WANTED, load_format="dummy"), places)


@pytest.mark.parametrize("load_format", ["auto", "pt"])
def test_weights_of_the_format_that_is_asked_for_are_missed(
    places: Places, source: Path, load_format: str
) -> None:
    (source / "model.pt").write_bytes(b"0")
    snapshot = cached(places.volume, source, listed=True)
    wanted = replace(WANTED, load_format=load_format)
    assert found(wanted, places).place == snapshot
    lacking = WEIGHTS if load_format == "auto" else "model.pt"
    (snapshot / lacking).unlink()
    assert f"{lacking} is missing" in passed(wanted, places)


# Other kinds and places:


@pytest.mark.parametrize("listed", [True, False])
def test_of_a_tokenizer_no_weights_are_wanted(places: Places, source: Path, listed: bool) -> None:
    snapshot = cached(places.volume, source, listed=listed)
    (snapshot / WEIGHTS).unlink()
    wanted = Wanted(NAME, kind=Kind.TOKENIZER, load_format="dummy")
    assert found(wanted, places).place == snapshot
    (snapshot / "tokenizer.json").unlink()
    lacks = "tokenizer.json is missing" if listed else "there is no tokenizer in it"
    assert lacks in passed(wanted, places)


def test_an_adapter_has_weights_and_no_configuration_of_a_model(
    places: Places, tmp_path: Path
) -> None:
    source = model(tmp_path / "adapter", ["adapter_model.safetensors"])
    (source / "config.json").rename(source / "adapter_config.json")
    snapshot = cached(places.platform, source)
    wanted = Wanted(NAME, kind=Kind.ADAPTER)
    assert found(wanted, places).place == snapshot
    assert "config.json is missing" in passed(WANTED, places)
    (snapshot / "adapter_model.safetensors").unlink()
    assert "there is no model in it" in passed(wanted, places)


def test_a_directory_for_downloads_takes_the_place_of_the_volume(
    places: Places, source: Path, tmp_path: Path
) -> None:
    cached(places.volume, source, listed=True)
    wanted = replace(WANTED, download_dir=tmp_path / "downloads")
    assert f"volume: it does not have {NAME}" in passed(wanted, places)
    snapshot = cached(tmp_path / "downloads", source, listed=True)
    assert found(wanted, places).place == snapshot


def test_a_manifest_is_written_whole_or_not_at_all(
    places: Places, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "full")

    cached(places.volume, source, listed=True)
    folder = repository_folder(places.volume, NAME)
    known = read(folder, commit(source))
    assert known
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="full"):
            write(folder, replace(known, model="org/other"))
    assert read(folder, commit(source)) == known
    assert len([*(folder / ".worker" / "manifests").iterdir()]) == 1


def test_who_reads_a_manifest_sees_one_of_them_and_never_a_mixture(
    places: Places, source: Path
) -> None:
    cached(places.volume, source, listed=True)
    folder = repository_folder(places.volume, NAME)
    known = read(folder, commit(source))
    assert known
    (path,) = (folder / ".worker" / "manifests").iterdir()
    before = path.read_text()
    with path.open() as opened:
        write(folder, replace(known, files=()))
        assert opened.read() == before
    assert read(folder, commit(source)) == replace(known, files=())
