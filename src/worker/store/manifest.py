"""Manifests: the sizes of all files that a repository has at a commit, downloaded or not.

A manifest is written after the last file: its snapshot is complete. Folders are those of
repositories in a cache, commits are whole hashes.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker import volume
from worker.store.places import STATE

_SIZES = TypeAdapter(dict[str, int])

_FOLDER = "manifests"
_BEGUN = ".begun"


def read(folder: Path, commit: str) -> dict[str, int] | None:
    """Return the bytes of each file; None, if there is no manifest that can be read."""
    try:
        return _SIZES.validate_json(_path(folder, commit).read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, commit: str, sizes: Mapping[str, int]) -> None:
    """Mark a commit's download as complete."""
    volume.write(_path(folder, commit), json.dumps(sizes, indent=1).encode())


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


def _path(folder: Path, commit: str) -> Path:
    return folder / STATE / _FOLDER / f"{commit}.json"
