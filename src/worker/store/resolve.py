"""Finds what is on the disk: the first place that has all of it wins. The hub is not asked.

A snapshot in a cache must be complete: by its manifest if a worker has downloaded it, by its files
if the platform or huggingface_hub has.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from worker.store import disk, files, manifest
from worker.store.files import INDEX
from worker.store.places import HASH, BakedModel, Places, repository_folders
from worker.store.snapshot import Found, NotFound, Origin, Wanted

DEFAULT_REVISION = "main"


class _PassedOverError(Exception):
    """Why a place does not have what is wanted."""


def resolve(wanted: Wanted, places: Places) -> Found | NotFound:
    """Search the disk for what is wanted, place by place."""
    passed: list[str] = []
    for origin, look in _looks(wanted, places):
        try:
            place, commit = look()
        except _PassedOverError as why:
            passed.append(f"{origin}: {why}")
        except OSError as error:
            passed.append(f"{origin}: can't be read: {error.strerror}")
        else:
            return Found(wanted, place, origin, commit, tuple(passed))
    return NotFound(wanted, tuple(passed))


_Look = Callable[[], tuple[Path, str | None]]


def _looks(wanted: Wanted, places: Places) -> Iterator[tuple[Origin, _Look]]:
    if path := _directory(wanted.model):
        yield Origin.DIRECTORY, lambda: (path, None)
    cache = places.cache(wanted)
    if places.baked and not wanted.by_name:
        yield Origin.BAKED, partial(_baked, wanted, places)
    if places.platform != cache and not wanted.by_name:
        yield Origin.PLATFORM, partial(_cached, wanted, places.platform)
    yield Origin.VOLUME, partial(_cached, wanted, cache)


def _directory(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError):
        # The name is too long, or the home of an unknown user.
        return None


def _baked(wanted: Wanted, places: Places) -> tuple[Path, str]:
    for baked in places.baked:
        if baked.model != wanted.model or not _same_revision(wanted.revision, baked):
            continue
        if not baked.place.is_dir():
            # A volume may be mounted where the image has it.
            raise _PassedOverError(f"{baked.place} is gone, or hidden by what is mounted over it")
        if lacks := _lacks(baked.place.parents[1], baked.place, baked.commit, wanted):
            raise _PassedOverError(lacks)
        return baked.place, baked.commit
    held = ", ".join(f"{baked.model}@{baked.revision or baked.commit}" for baked in places.baked)
    raise _PassedOverError(f"it holds {held}")


def _same_revision(wanted: str | None, baked: BakedModel) -> bool:
    same_name = (wanted or DEFAULT_REVISION) == (baked.revision or DEFAULT_REVISION)
    return same_name or wanted == baked.commit


def _cached(wanted: Wanted, cache: Path) -> tuple[Path, str]:
    lacks = f"it does not have {wanted.model}"
    for folder in repository_folders(cache, wanted.model):
        if not folder.is_dir():
            continue
        commit = commit_of(folder, wanted.revision)
        if commit is None:
            lacks = f"it does not have revision {wanted.revision or DEFAULT_REVISION}"
            continue
        place = folder / "snapshots" / commit
        if not (why := _lacks(folder, place, commit, wanted)):
            return place, commit
        lacks = why
    raise _PassedOverError(lacks)


def commit_of(folder: Path, revision: str | None) -> str | None:
    """Return the commit that a revision had when it was downloaded, if its snapshot exists."""
    revision = revision or DEFAULT_REVISION
    if not files.inside(revision):
        return None
    ref = folder / "refs" / revision
    commit = ref.read_text(errors="replace").strip() if ref.is_file() else revision
    exists = HASH.fullmatch(commit) and (folder / "snapshots" / commit).is_dir()
    return commit if exists else None


def _lacks(folder: Path, place: Path, commit: str, wanted: Wanted) -> str | None:
    """Return why a snapshot can't be loaded, or None."""
    if sizes := manifest.read(folder, commit):
        return _difference(place, sizes, wanted)
    if manifest.was_begun(folder, commit):
        return f"the download of commit {commit[:12]} has not been completed"
    return disk.lacks(place, wanted)


def _difference(place: Path, sizes: Mapping[str, int], wanted: Wanted) -> str | None:
    """Return how a snapshot differs from its manifest, in the files that are loaded; or None."""
    names = files.needed(sizes, disk.text(place / INDEX), wanted)
    if not files.loadable(names, wanted):
        return disk.nothing_to_load(wanted)
    for name in names:
        path = place / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != sizes.get(name):
            return f"{name} is not as large as it should be"
    return None
