"""Completeness of a snapshot, by its manifest and the files that an artifact needs."""

import os
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

from worker.store import ArtifactKind, Places, manifest
from worker.store.manifest import read_sizes, write
from worker.store.places import repository_folder


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


def test_a_manifest_is_written_atomically(
    places: Places, repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(_: int) -> None:
        raise OSError(28, "full")

    fill_cache(places.volume, repository, with_manifest=True)
    name = commit_id(repository)
    before = read_sizes(folder, name)
    assert before
    (path,) = (folder / ".worker" / "manifests").iterdir()
    text = path.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raise_disk_full)
        with pytest.raises(OSError, match="full"):
            write(folder, name, {"other": 1})
    assert read_sizes(folder, name) == before
    assert [*path.parent.iterdir()] == [path]
    # A reader sees either the old or the new manifest, never a mixture.
    with path.open() as opened:
        write(folder, name, {"other": 1})
        assert opened.read() == text
    assert read_sizes(folder, name) == {"other": 1}
