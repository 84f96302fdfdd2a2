"""Where models lie: in the image, in the platform's cache, on the volume."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker.store.snapshot import Wanted

# The cache, in the hub's layout, to which the platform downloads a model chosen in its console.
PLATFORM = Path("/runpod-volume/huggingface-cache/hub")

# Names of commits and blobs, SHA-1 or SHA-256: safe as parts of a path.
HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

# The worker's own folder in a repository's: manifests and leases.
STATE = ".worker"


@dataclass(frozen=True)
class BakedModel:
    """A repository that was put into the image when it was built."""

    model: str
    revision: str | None
    commit: str
    place: Path


@dataclass(frozen=True)
class _Image:
    """The part of the image's manifest that lists its models; the rest are settings."""

    models: tuple[BakedModel, ...] = ()


_IMAGE = TypeAdapter(_Image)


@dataclass(frozen=True)
class Places:
    """The places that are searched.

    Args:
        volume: cache in the hub's layout, to which the worker downloads.
        platform: the same, but filled by the platform.
        baked: the models in the image.
    """

    volume: Path
    platform: Path = PLATFORM
    baked: tuple[BakedModel, ...] = ()

    def cache(self, wanted: Wanted) -> Path:
        """Return the cache that a model is downloaded to."""
        return wanted.download_dir or self.volume


def baked_models(manifest: Path) -> tuple[BakedModel, ...]:
    """Read which models are in the image; none, if the file is missing or lists none."""
    try:
        return _IMAGE.validate_json(manifest.read_bytes()).models
    except (OSError, ValidationError):
        return ()


def repository_folder(cache: Path, model: str) -> Path:
    """Return the folder of a repository in a cache."""
    return cache / "--".join(["models", *model.split("/")])


def repository_folders(cache: Path, model: str) -> list[Path]:
    """Return the folders that a repository may lie in: the platform may use lower case."""
    names = dict.fromkeys([model, model.lower()])
    return [repository_folder(cache, name) for name in names]


def on_own_disk(place: Path) -> bool:
    """True if a path, which need not exist yet, is on the container's disk: no worker shares it."""
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    return existing.stat().st_dev == Path("/").stat().st_dev
