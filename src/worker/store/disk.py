"""Models that lie on a disk: in a directory, or in the hub's cache."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from worker.store import files, headers
from worker.store.files import CONFIG, INDEX
from worker.store.snapshot import File, Origin, Snapshot, Wanted

DEFAULT_REVISION = "main"


def in_directory(wanted: Wanted) -> Snapshot:
    """Describe a model in a directory."""
    return _described(wanted, Origin.DIRECTORY, [Path(wanted.model)])


def in_cache(wanted: Wanted) -> Snapshot | None:
    """Describe a model that lies in the hub's cache, in the revision that is wanted, complete.

    The hub is not asked: a branch is where it was when it was downloaded.
    """
    if (commit := cached_commit(wanted)) is None:
        return None
    there = [place for place in snapshots(wanted, commit) if place.is_dir()]
    found = _described(wanted, Origin.CACHE, there, commit)
    if wanted.part:
        return found
    weights = found.weights or wanted.load_format == "dummy"
    return found if weights and found.config and not found.lacking else None


def caches(wanted: Wanted) -> list[Path]:
    """Return the model's folders in the caches: that of its weights first."""
    name = repo_folder_name(repo_id=wanted.model, repo_type="model")
    roots = [wanted.download_dir, Path(constants.HF_HUB_CACHE)]
    return [root / name for root in roots if root]


def snapshots(wanted: Wanted, commit: str) -> list[Path]:
    return [cache / "snapshots" / commit for cache in caches(wanted)]


def cached_commit(wanted: Wanted) -> str | None:
    """Return the commit that a revision, or the default branch, had when it was downloaded."""
    revision = wanted.revision or DEFAULT_REVISION
    for cache in caches(wanted):
        if (ref := cache / "refs" / revision).is_file():
            return ref.read_text(errors="replace").strip()
        if (cache / "snapshots" / revision).is_dir():
            return revision
    return None


def counted(paths: list[Path]) -> tuple[Counter[str] | None, str | None]:
    """Count the elements of weights, if their format tells; and say what is damaged."""
    if not paths or any(path.suffix != ".safetensors" for path in paths):
        return None, None
    try:
        return headers.tensors(paths), None
    except headers.Unreadable as error:
        return None, str(error)


def _described(
    wanted: Wanted, origin: Origin, places: list[Path], commit: str | None = None
) -> Snapshot:
    """Describe a model whose files may be spread over several places, the first one preferred."""
    found = {name: path for place in reversed(places) for name, path in _found(place)}
    index = files.indexed(_text(found.get(INDEX)))
    named = files.weights(found, index, wanted.load_format)
    weights = [name for name in named if name in found]

    def listed(names: list[str]) -> tuple[File, ...]:
        return tuple(File(name, found[name].stat().st_size) for name in names)

    tensors, damaged = counted([found[name] for name in weights])
    return Snapshot(
        model=wanted.model,
        origin=origin,
        place=places[0] if places else Path(wanted.model),
        commit=commit,
        weights=listed(weights),
        others=listed(files.others(found)),
        lacking=tuple(name for name in named if name not in found),
        config=files.json_object(_text(found.get(CONFIG))),
        tensors=tensors,
        damaged=damaged,
    )


def _found(place: Path) -> Iterator[tuple[str, Path]]:
    for path in place.rglob("*"):
        # Not what a link leads to that leads nowhere.
        if path.is_file():
            yield path.relative_to(place).as_posix(), path


def _text(path: Path | None) -> str:
    return path.read_text(errors="replace") if path else ""
