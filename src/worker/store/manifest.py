"""Manifests with the sizes of all files that a repository has at a commit, downloaded or not.

A manifest is written after the last file, so a snapshot with a manifest is complete. The ``folder``
arguments are repository folders in a cache; commits are full hashes.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker.volume import durable

# Name of the worker's folder in a repository's folder, for manifests and leases.
STATE_FOLDER = ".worker"

_SIZES = TypeAdapter(dict[str, int])

_FOLDER = "manifests"
_BEGUN_SUFFIX = ".begun"


def read_sizes(folder: Path, commit: str) -> dict[str, int] | None:
    """Return the files' sizes in bytes, by name; None if there is no valid manifest."""
    try:
        return _SIZES.validate_json(_path(folder, commit).read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, commit: str, sizes: Mapping[str, int]) -> None:
    """Write the manifest of a commit, which marks its download as complete."""
    durable.write_file(_path(folder, commit), json.dumps(sizes, indent=1).encode())


def mark_download_started(folder: Path, commit: str) -> None:
    """Mark a commit's download as started: it is incomplete until it has a manifest."""
    path = _path(folder, commit).with_suffix(_BEGUN_SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def has_download_started(folder: Path, commit: str) -> bool:
    """Return whether a worker has started to download a commit, which may be complete by now."""
    path = _path(folder, commit)
    return path.exists() or path.with_suffix(_BEGUN_SUFFIX).exists()


def remove_started_download_marks(folder: Path) -> None:
    """Remove the marks of started downloads from a repository without files."""
    for path in (folder / STATE_FOLDER / _FOLDER).glob(f"*{_BEGUN_SUFFIX}"):
        path.unlink(missing_ok=True)
    (folder / STATE_FOLDER / _FOLDER).rmdir()


def _path(folder: Path, commit: str) -> Path:
    return folder / STATE_FOLDER / _FOLDER / f"{commit}.json"
