"""Manifests: the files of a complete snapshot. Written after the last of them."""

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from worker.store.places import STATE
from worker.store.snapshot import File


@dataclass(frozen=True)
class Manifest:
    """All files that a repository has at a commit, downloaded or not."""

    model: str
    commit: str
    files: tuple[File, ...]


_JSON = TypeAdapter(Manifest)

_FOLDER = "manifests"
_BEGUN = ".begun"


def read(folder: Path, commit: str) -> Manifest | None:
    """Read the manifest of a commit; None, if there is none that can be read.

    Args:
        folder: of the repository, in a cache.
        commit: the whole hash.
    """
    try:
        return _JSON.validate_json(_path(folder, commit).read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, manifest: Manifest) -> None:
    """Mark a commit's download as complete."""
    replace(_path(folder, manifest.commit), _JSON.dump_json(manifest, indent=1))


def mark_begun(folder: Path, commit: str) -> None:
    """Mark a commit as incomplete until it has a manifest."""
    path = _path(folder, commit).with_suffix(_BEGUN)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def was_begun(folder: Path, commit: str) -> bool:
    """Return whether a worker has begun to download a commit; it may have completed it."""
    path = _path(folder, commit)
    return path.exists() or path.with_suffix(_BEGUN).exists()


def forget(folder: Path) -> None:
    """Remove the marks of downloads that were begun, for a repository without any files."""
    for path in (folder / STATE / _FOLDER).glob(f"*{_BEGUN}"):
        path.unlink(missing_ok=True)
    (folder / STATE / _FOLDER).rmdir()


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _path(folder: Path, commit: str) -> Path:
    return folder / STATE / _FOLDER / f"{commit}.json"
