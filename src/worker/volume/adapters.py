"""LoRA adapters on the network volume: ``adapters/<name>``, with the files that PEFT writes."""

import contextlib
import json
import re
import shutil
from pathlib import Path

from pydantic import BaseModel, ValidationError

from worker.errors import NoSuchObject
from worker.volume import ADAPTERS_DIRECTORY, translate_os_errors
from worker.volume.durable import remove_directory
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation

CONFIG, WEIGHTS = FILES = "adapter_config.json", "adapter_model.safetensors"
# Additional file in the directory of an adapter that a fine-tune created.
ORIGIN_FILE = "fine_tune.json"
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class AdapterOrigin(BaseModel):
    """Content of ``ORIGIN_FILE``: the id of the fine-tune that created the adapter."""

    id: str


# Modification time in ns, size in bytes and inode of each of ``FILES``; None for a missing file.
AdapterVersion = tuple[tuple[int, int, int] | None, ...]


def adapters_directory(volume: Path) -> Path:
    return volume / ADAPTERS_DIRECTORY


def adapter_names(root: Path) -> list[str]:
    """Return the sorted names of the adapters in a directory that have all ``FILES``."""
    return [*adapter_versions(root)]


def adapter_versions(root: Path) -> dict[str, AdapterVersion]:
    """Return the versions of the adapters that have all ``FILES``, sorted by name."""
    versions = {}
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            with contextlib.suppress(OSError):
                version = adapter_version(root, folder.name)
                if version is not None and None not in version:
                    versions[folder.name] = version
    return dict(sorted(versions.items()))


def adapter_version(root: Path, name: str) -> AdapterVersion | None:
    """Return the version of an adapter's files; None if there is no such adapter.

    A directory that leads out of ``root`` by symlinks is no adapter.
    """
    if _find_flaw(root, name) is not None:
        return None
    files = [root / name / file for file in FILES]
    stats = [file.stat() if file.is_file() else None for file in files]
    return tuple(stat and (stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def explain_missing_adapter(root: Path, name: str) -> str:
    """Return why an entry of ``root`` is no adapter, as a sentence that follows another one.

    The result is empty if there is no such entry, or if it is hidden or an adapter. Reads the
    volume, so call it in a thread.
    """
    with contextlib.suppress(OSError):
        if not name.startswith(".") and name in {entry.name for entry in root.iterdir()}:
            missing = [file for file in FILES if not (root / name / file).is_file()]
            flaw = _find_flaw(root, name) or (missing and f"has no {' and no '.join(missing)}")
            return f" {ADAPTERS_DIRECTORY}/{name} {flaw}." if flaw else ""
    return ""


def _find_flaw(root: Path, name: str) -> str | None:
    """Return why an entry of ``root`` can't be an adapter, whatever files it has."""
    if not NAME_PATTERN.fullmatch(name):
        return "has a name that no adapter can have: letters, digits and ._- only"
    try:
        top, folder = root.resolve(), (root / name).resolve()
        files = [(folder / file).resolve() for file in FILES]
    except RuntimeError:
        return "is a symlink to itself"
    if not all(path.is_relative_to(top) for path in (folder, *files)):
        return f"leads out of {ADAPTERS_DIRECTORY}/ by a symlink: copy the files into it"
    return None if folder.is_dir() else "is no directory"


def origin_fine_tune_id(root: Path, name: str) -> str | None:
    """Return the id of the fine-tune that created an adapter; None if no fine-tune did."""
    missing = (FileNotFoundError, NotADirectoryError, ValidationError)
    with translate_os_errors(), contextlib.suppress(*missing):
        if adapter_version(root, name) is not None:
            return AdapterOrigin.model_validate_json((root / name / ORIGIN_FILE).read_bytes()).id
    return None


def adapter_file_paths(
    root: Path, name: str, location: VolumeLocation = UNKNOWN_LOCATION
) -> dict[str, Path]:
    """Return the paths of all files of an adapter by name, including additional files.

    Files with unusual names, and symlinks that lead out of ``root``, are left out.

    Raises:
        NoSuchObject: The adapter doesn't exist.
        OnOtherVolume: The adapter is on another volume than this ``location``.
    """
    with translate_os_errors():
        if adapter_version(root, name) is None:
            location.check_name("adapter", name)
            raise NoSuchObject(f"There is no adapter {name!r} on the volume.")
        top = root.resolve()
        paths = {file.name: file.resolve() for file in sorted((root / name).iterdir())}
        return {
            file: path
            for file, path in paths.items()
            if NAME_PATTERN.fullmatch(file) and path.is_file() and path.is_relative_to(top)
        }


def remove_adapter(root: Path, name: str) -> None:
    """Remove an adapter atomically for all workers; if its name is a symlink, remove only the link.

    Raises:
        NoSuchObject: The adapter doesn't exist.
    """
    with translate_os_errors():
        if adapter_version(root, name) is None:
            raise NoSuchObject(f"There is no adapter {name!r} on the volume.")
        remove_directory(root / name)


def copy_adapter(source: Path, target: Path, base_model: str) -> None:
    """Copy configuration and weights of an adapter, and set the base model in the copy."""
    shutil.copyfile(source / WEIGHTS, target / WEIGHTS)
    config = {**json.loads((source / CONFIG).read_bytes()), "base_model_name_or_path": base_model}
    (target / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
