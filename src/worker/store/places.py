"""The places to find models: image, platform's store and cache, volume; and the search in them.

The search finds an artifact in the first place that has all files, and sends no requests to the
hub. A snapshot in a cache must be complete: according to its manifest if a worker downloaded it, or
according to its files if the platform or huggingface_hub downloaded it. The same is true for the
directories in the platform's model store.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker.store import disk, files, manifest
from worker.store.files import INDEX, is_inside_folder
from worker.store.snapshot import Artifact, ArtifactLocation, Origin, UnlocatedArtifact

# Cache in the hub's layout to which the platform downloads the model selected in its console.
PLATFORM_CACHE = Path("/runpod-volume/huggingface-cache/hub")

# Directory to which the platform downloads the models that its SDK attaches to an endpoint. The
# files of a revision are in org/name/<commit>.
MODEL_STORE = Path("/runpod/model-store/huggingface")

DEFAULT_REVISION = "main"
# Matches names of commits and blobs (SHA-1 or SHA-256), which are safe in paths.
HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


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
    """The places to search for models."""

    volume: Path  # cache in the hub's layout, to which the worker downloads
    platform: Path = PLATFORM_CACHE  # the same, to which the platform downloads
    baked: tuple[BakedModel, ...] = ()  # in the image
    model_store: Path = MODEL_STORE  # the models that the platform has attached

    def download_cache(self, artifact: Artifact) -> Path:
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
    return [repository_folder(cache, name) for name in _possible_names(model)]


def _possible_names(model: str) -> list[str]:
    """Return the names that the platform may use for a repository: also in lower case."""
    return [*dict.fromkeys([model, model.lower()])]


def is_on_container_disk(place: Path) -> bool:
    """Return whether a path, which may not exist yet, is on the container's own, unshared disk."""
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    return existing.stat().st_dev == Path("/").stat().st_dev


class _PlaceSkippedError(Exception):
    """A place doesn't have the artifact; the message says why."""


def resolve_on_disk(artifact: Artifact, places: Places) -> ArtifactLocation | UnlocatedArtifact:
    skipped: list[str] = []
    for origin, search in _place_searches(artifact, places):
        try:
            directory, commit = search()
        except _PlaceSkippedError as why:
            skipped.append(f"{origin}: {why}")
        except OSError as error:
            skipped.append(f"{origin}: can't be read: {error.strerror}")
        else:
            return ArtifactLocation(artifact, directory, origin, commit, tuple(skipped))
    return UnlocatedArtifact(artifact, tuple(skipped))


_Search = Callable[[], tuple[Path, str | None]]
_RevisionSearch = Callable[[Path, str | None], Path | None]


def _place_searches(artifact: Artifact, places: Places) -> Iterator[tuple[Origin, _Search]]:
    try:
        path = Path(artifact.model).expanduser()
        is_directory = path.is_dir()
    except (OSError, RuntimeError):
        # The name is too long, or starts with the home directory of an unknown user.
        is_directory = False
    if is_directory:
        yield Origin.DIRECTORY, lambda: (path, None)
    cache = places.download_cache(artifact)
    if not artifact.loaded_by_name:
        if places.baked:
            yield Origin.BAKED, partial(_find_baked, artifact, places)
        # Most endpoints have no model store, so the log does not list it as skipped.
        if os.path.isdir(places.model_store):  # noqa: PTH112 - pathlib raises without permission
            names = _possible_names(artifact.model) if is_inside_folder(artifact.model) else []
            folders = [places.model_store / name for name in names]
            yield Origin.MODEL_STORE, partial(_find_revision, artifact, folders, _stored_directory)
        if places.platform != cache:
            folders = possible_repository_folders(places.platform, artifact.model)
            yield Origin.PLATFORM, partial(_find_revision, artifact, folders, _cached_directory)
    folders = possible_repository_folders(cache, artifact.model)
    yield Origin.VOLUME, partial(_find_revision, artifact, folders, _cached_directory)


def _find_baked(artifact: Artifact, places: Places) -> tuple[Path, str]:
    revision = artifact.revision or DEFAULT_REVISION
    for baked in places.baked:
        revisions = (baked.revision or DEFAULT_REVISION, baked.commit)
        if baked.model != artifact.model or revision not in revisions:
            continue
        if not baked.place.is_dir():
            # A volume may be mounted over the model's path in the image.
            raise _PlaceSkippedError(f"{baked.place} is missing, or hidden by a mount over it")
        if why := _snapshot_problem(baked.place.parents[1], baked.place, baked.commit, artifact):
            raise _PlaceSkippedError(why)
        return baked.place, baked.commit
    models = ", ".join(f"{baked.model}@{baked.revision or baked.commit}" for baked in places.baked)
    raise _PlaceSkippedError(f"it contains {models}")


def _find_revision(
    artifact: Artifact, folders: Sequence[Path], find_directory: _RevisionSearch
) -> tuple[Path, str | None]:
    """Return the directory of an artifact's revision, and its commit, if that is its name."""
    problem = f"it does not have {artifact.model}"
    for folder in folders:
        if not folder.is_dir():
            continue
        directory = find_directory(folder, artifact.revision)
        if directory is None:
            problem = f"it does not have revision {artifact.revision or DEFAULT_REVISION}"
            continue
        name = directory.name
        if not (why := _snapshot_problem(folder, directory, name, artifact)):
            return directory, name if HASH.fullmatch(name) else None
        problem = why
    raise _PlaceSkippedError(problem)


def _stored_directory(folder: Path, revision: str | None) -> Path | None:
    """Return the directory of a revision in the model store.

    The default revision is the only one, which the platform has chosen when it attached the model.
    """
    directories = [path for path in folder.iterdir() if path.is_dir()]
    if revision is None and len(directories) == 1:
        return directories[0]
    directory = folder / (revision or DEFAULT_REVISION)
    return directory if directory in directories else None


def _cached_directory(folder: Path, revision: str | None) -> Path | None:
    """Return the snapshot of the commit to which a cached revision refers."""
    revision = revision or DEFAULT_REVISION
    if not is_inside_folder(revision):
        return None
    ref = folder / "refs" / revision
    commit = ref.read_text(errors="replace").strip() if ref.is_file() else revision
    directory = folder / "snapshots" / commit
    return directory if HASH.fullmatch(commit) and directory.is_dir() else None


def _snapshot_problem(folder: Path, directory: Path, commit: str, artifact: Artifact) -> str | None:
    sizes = manifest.read_sizes(folder, commit)
    if not sizes:
        if manifest.has_download_started(folder, commit):
            return f"the download of commit {commit[:12]} has not been completed"
        return disk.loading_problem(directory, artifact)
    names = files.needed_files(sizes, disk.read_text_or_empty(directory / INDEX), artifact)
    if not files.has_required_files(names, artifact):
        return disk.nothing_to_load_message(artifact)
    for name in names:
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != sizes.get(name):
            return f"{name} is not as large as it should be"
    return None
