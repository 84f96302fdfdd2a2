"""The places to find models: the image, the platform's store and cache, and the volume."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker.store.files import is_inside_folder
from worker.store.snapshot import Artifact

# Cache in the hub's layout to which the platform downloads the model selected in its console.
PLATFORM_CACHE = Path("/runpod-volume/huggingface-cache/hub")

# Directory to which the platform downloads the models that its SDK attaches to an endpoint. The
# files of a revision are in org/name/<commit>.
MODEL_STORE = Path("/runpod/model-store/huggingface")

# Matches names of commits and blobs (SHA-1 or SHA-256), which are safe in paths.
HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

# Name of the worker's folder in a repository's folder, for manifests and leases.
STATE_FOLDER = ".worker"


@dataclass(frozen=True)
class BakedModel:
    """A repository that was added to the image when the image was built."""

    model: str
    revision: str | None
    commit: str
    place: Path


@dataclass(frozen=True)
class _ImageManifest:
    """The image's manifest, without its settings."""

    models: tuple[BakedModel, ...] = ()


_IMAGE = TypeAdapter(_ImageManifest)


@dataclass(frozen=True)
class Places:
    """The places to search for models.

    Args:
        volume: Cache in the hub's layout, to which the worker downloads.
        platform: Cache in the hub's layout, to which the platform downloads.
        baked: The models in the image.
        model_store: Directory with the platform's attached models.
    """

    volume: Path
    platform: Path = PLATFORM_CACHE
    baked: tuple[BakedModel, ...] = ()
    model_store: Path = MODEL_STORE

    def download_cache(self, artifact: Artifact) -> Path:
        """Return the cache to which an artifact is downloaded."""
        return artifact.download_dir or self.volume


def read_baked_models(manifest: Path) -> tuple[BakedModel, ...]:
    """Read the list of models in the image; empty if the manifest is missing or lists none."""
    try:
        return _IMAGE.validate_json(manifest.read_bytes()).models
    except (OSError, ValidationError):
        return ()


def repository_folder(cache: Path, model: str) -> Path:
    return cache / "--".join(["models", *model.split("/")])


def possible_repository_folders(cache: Path, model: str) -> list[Path]:
    """Return the possible folders of a repository in a cache."""
    return [repository_folder(cache, name) for name in _possible_names(model)]


def possible_store_folders(store: Path, model: str) -> list[Path]:
    """Return the possible folders of a repository in the platform's model store."""
    if not is_inside_folder(model):
        return []
    return [store / name for name in _possible_names(model)]


def _possible_names(model: str) -> list[str]:
    """Return the names that the platform may use for a repository: also in lower case."""
    return [*dict.fromkeys([model, model.lower()])]


def is_on_container_disk(place: Path) -> bool:
    """Return whether a path, which may not exist yet, is on the container's own, unshared disk."""
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    return existing.stat().st_dev == Path("/").stat().st_dev
