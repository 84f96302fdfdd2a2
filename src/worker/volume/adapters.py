"""LoRA adapters on the network volume: ``adapters/<name>``, with the files that PEFT writes."""

import contextlib
import json
import re
import shutil
from pathlib import Path

from pydantic import BaseModel, ValidationError

from worker.errors import NoSuchObject
from worker.volume import ADAPTERS, failures
from worker.volume.directories import vanish

CONFIG, WEIGHTS = FILES = "adapter_config.json", "adapter_model.safetensors"
# Beside both files of an adapter that a fine-tune has made.
MADE = "fine_tune.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Made(BaseModel):
    """What ``MADE`` holds: the id of the fine-tune."""

    id: str


# Each file's modification time in ns, size in bytes and inode; None for one that is missing.
Version = tuple[tuple[int, int, int] | None, ...]


def directory(volume: Path) -> Path:
    """Return where the adapters of a volume are."""
    return volume / ADAPTERS


def adapter_names(root: Path) -> list[str]:
    """Return the names of the adapters under a directory that have both files, sorted."""
    return [*adapter_versions(root)]


def adapter_versions(root: Path) -> dict[str, Version]:
    """Return the versions of the adapters that have both files, by their names, sorted."""
    versions = {}
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            with contextlib.suppress(OSError):
                version = adapter_version(root, folder.name)
                if version is not None and None not in version:
                    versions[folder.name] = version
    return dict(sorted(versions.items()))


def adapter_version(root: Path, name: str) -> Version | None:
    """Return the version of an adapter's files; None if there is no such directory under ``root``.

    Raises:
        OSError: the volume can't be read.
    """
    if not NAME.fullmatch(name):
        return None
    try:
        top, folder = root.resolve(), (root / name).resolve()
        files = [(folder / file).resolve() for file in FILES]
    except RuntimeError:  # links in a circle
        return None
    if not folder.is_dir() or not all(path.is_relative_to(top) for path in (folder, *files)):
        return None
    stats = [file.stat() if file.is_file() else None for file in files]
    return tuple(stat and (stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def maker(root: Path, name: str) -> str | None:
    """Return the id of the fine-tune that has made an adapter; None: none has, or there is none.

    Raises:
        VolumeError: the volume can't be read.
    """
    with failures(), contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
        if adapter_version(root, name) is not None:
            return Made.model_validate_json((root / name / MADE).read_bytes()).id
    return None


def adapter_files(root: Path, name: str) -> dict[str, Path]:
    """Return all files of an adapter by their names, also what lies beside the two it needs.

    Raises:
        NoSuchObject: there is no such adapter.
        VolumeError: the volume can't be read.
    """
    with failures():
        if adapter_version(root, name) is None:
            raise NoSuchObject(f"There is no adapter {name!r} on the volume.")
        top = root.resolve()
        found = {file.name: file.resolve() for file in sorted((root / name).iterdir())}
        return {
            file: place
            for file, place in found.items()
            if NAME.fullmatch(file) and place.is_file() and place.is_relative_to(top)
        }


def remove(root: Path, name: str) -> None:
    """Remove an adapter, at once for all workers; where its name is a link, only the link.

    Raises:
        NoSuchObject: there is no such adapter.
        VolumeError: the volume can't be written to.
    """
    with failures():
        if adapter_version(root, name) is None:
            raise NoSuchObject(f"There is no adapter {name!r} on the volume.")
        vanish(root / name)


def copy(source: Path, folder: Path, base: str) -> None:
    """Copy the two files of an adapter.

    Args:
        source: has them.
        folder: gets them.
        base: the name of the base model, to be in the copy's configuration.

    Raises:
        OSError: they can't be read or written.
    """
    shutil.copyfile(source / WEIGHTS, folder / WEIGHTS)
    config = {**json.loads((source / CONFIG).read_bytes()), "base_model_name_or_path": base}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
