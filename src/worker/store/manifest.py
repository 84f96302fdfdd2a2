"""What a complete snapshot consists of: written when the last file is there, and held to later."""

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from worker.store.places import STATE
from worker.store.snapshot import File


@dataclass(frozen=True)
class Manifest:
    """All files that a repository has at a commit, by their names, on the disk or not."""

    model: str
    commit: str
    files: tuple[File, ...]


_JSON = TypeAdapter(Manifest)

_FOLDER = "manifests"
_BEGUN = ".begun"


def read(folder: Path, commit: str) -> Manifest | None:
    """Read what is known of a commit; nothing, if its download has not been completed.

    Args:
        folder: of the repository, in a cache.
        commit: the whole hash.
    """
    try:
        return _JSON.validate_json(_path(folder, commit).read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, manifest: Manifest) -> None:
    """Say that a commit's download is complete; the last thing to be written."""
    replace(_path(folder, manifest.commit), _JSON.dump_json(manifest, indent=1))


def begin(folder: Path, commit: str) -> None:
    """Say that a commit is being downloaded: until its manifest is there, it is not complete."""
    path = _path(folder, commit).with_suffix(_BEGUN)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def begun(folder: Path, commit: str) -> bool:
    """Tell whether a commit was put there by a download of the worker's own, all of it or not."""
    path = _path(folder, commit)
    return path.exists() or path.with_suffix(_BEGUN).exists()


def forget(folder: Path) -> None:
    """Forget what was begun, where nothing has come of it."""
    for path in (folder / STATE / _FOLDER).glob(f"*{_BEGUN}"):
        path.unlink(missing_ok=True)
    (folder / STATE / _FOLDER).rmdir()


def replace(path: Path, content: bytes) -> None:
    """Write a file so that whoever reads it sees the old content or the new one, never a part."""
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
