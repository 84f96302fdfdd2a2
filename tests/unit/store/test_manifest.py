"""Whether a snapshot is complete: by its manifest, in the files that are wanted of it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hub.caches import INDEX, NAME, SHARDS, WANTED, WEIGHTS, cached, found, model, passed
from support.hub.server import commit

from worker.store import Kind, Places, manifest
from worker.store.manifest import read, write
from worker.store.places import repository_folder


@pytest.fixture
def folder(places: Places) -> Path:
    """Return the repository's folder on the volume."""
    return repository_folder(places.volume, NAME)


def test_what_was_begun_is_not_trusted(places: Places, repository: Path, folder: Path) -> None:
    snapshot = cached(places.volume, repository)
    # Of another commit.
    manifest.mark_begun(folder, "0" * 40)
    assert found(WANTED, places).place == snapshot
    manifest.mark_begun(folder, snapshot.name)
    why = f"volume: the download of commit {snapshot.name[:12]} has not been completed"
    assert why in passed(WANTED, places)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"config.json": "large"}'])
def test_a_manifest_that_can_not_be_read_counts_as_none(
    places: Places, repository: Path, folder: Path, content: str
) -> None:
    cached(places.volume, repository, listed=True)
    (folder / ".worker" / "manifests" / f"{commit(repository)}.json").write_text(content)
    assert not read(folder, commit(repository))
    assert "has not been completed" in passed(WANTED, places)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_noticed(places: Places, repository: Path, change: int) -> None:
    blob = (cached(places.volume, repository, listed=True) / "tokenizer.json").resolve()
    blob.write_bytes((blob.read_bytes() + b" ")[: blob.stat().st_size + change])
    assert "tokenizer.json is not as large as it should be" in passed(WANTED, places)


TOKENIZER: dict[str, Any] = {"kind": Kind.TOKENIZER, "load_format": "dummy"}


@pytest.mark.parametrize(
    ("more", "wanted", "gone", "lacking"),
    [
        *(((), {}, name, name) for name in (SHARDS[1], INDEX, "tokenizer.json")),
        # What is not loaded may be missing.
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
def test_a_file_of_the_manifest_that_is_gone_is_noticed_if_it_is_loaded(
    places: Places,
    tmp_path: Path,
    more: tuple[str, ...],
    wanted: dict[str, Any],
    gone: str,
    lacking: str | None,
) -> None:
    repository = model(tmp_path / "source", SHARDS)
    for name in more:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(b"0")
    snapshot = cached(places.volume, repository, listed=True)
    asked = replace(WANTED, **wanted)
    assert found(asked, places).place == snapshot
    (snapshot / gone).unlink()
    if lacking is None:
        assert found(asked, places).place == snapshot
    else:
        assert f"volume: {lacking} is missing" in passed(asked, places)


def test_a_manifest_of_nothing_to_load_is_passed_over(places: Places, repository: Path) -> None:
    (repository / WEIGHTS).unlink()
    cached(places.volume, repository, listed=True)
    assert "there is no model in it" in passed(WANTED, places)


def test_without_a_manifest_each_kind_wants_its_own_files(places: Places, repository: Path) -> None:
    snapshot = cached(places.platform, repository)
    tokenizer, adapter = replace(WANTED, **TOKENIZER), replace(WANTED, kind=Kind.ADAPTER)
    (snapshot / "config.json").unlink()
    assert "config.json is missing" in passed(WANTED, places)
    assert found(adapter, places).place == snapshot
    (snapshot / WEIGHTS).unlink()
    assert "there is no model in it" in passed(adapter, places)
    assert found(tokenizer, places).place == snapshot
    (snapshot / "tokenizer.json").unlink()
    assert "there is no tokenizer in it" in passed(tokenizer, places)


def test_a_manifest_is_written_whole_or_not_at_all(
    places: Places, repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "full")

    cached(places.volume, repository, listed=True)
    name = commit(repository)
    before = read(folder, name)
    assert before
    (path,) = (folder / ".worker" / "manifests").iterdir()
    text = path.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="full"):
            write(folder, name, {"other": 1})
    assert read(folder, name) == before
    assert [*path.parent.iterdir()] == [path]
    # Who reads one sees it or the next one, and never a mixture.
    with path.open() as opened:
        write(folder, name, {"other": 1})
        assert opened.read() == text
    assert read(folder, name) == {"other": 1}
