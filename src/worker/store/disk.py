"""Models that lie on a disk: what is there, and whether that looks complete."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from worker.store import files, headers
from worker.store.files import CONFIG, INDEX
from worker.store.snapshot import File, Kind, Origin, Snapshot, Wanted


def described(wanted: Wanted, origin: Origin, place: Path, commit: str | None = None) -> Snapshot:
    """Describe a model in a directory."""
    found = dict(_found(place))
    index = files.indexed(text(found.get(INDEX)))
    named = files.weights_of(found, index, wanted)
    weights = [name for name in named if name in found]

    def listed(names: list[str]) -> tuple[File, ...]:
        return tuple(File(name, found[name].stat().st_size) for name in names)

    tensors, damaged = counted([found[name] for name in weights])
    return Snapshot(
        model=wanted.model,
        origin=origin,
        place=place,
        commit=commit,
        weights=listed(weights),
        others=listed(files.others(found)),
        lacking=tuple(name for name in named if name not in found),
        config=files.json_object(text(found.get(CONFIG))),
        tensors=tensors,
        damaged=damaged,
    )


def lacks(place: Path, wanted: Wanted) -> str | None:
    """Say what a directory that nobody vouches for lacks, by its looks."""
    found = described(wanted, Origin.DIRECTORY, place)
    weights = [file.name for file in found.weights]
    # Where there is no index, or it came before what it names.
    if lacking := [*found.lacking, *files.shards_lacking(weights)]:
        return f"{lacking[0]} is missing"
    if found.damaged:
        return found.damaged
    names = [file.name for file in (*found.weights, *found.others)]
    if not files.loadable(names, wanted):
        return nothing(wanted)
    if wanted.kind is Kind.MODEL and not found.config:
        return f"{CONFIG} is missing"
    return None


def nothing(wanted: Wanted) -> str:
    """Say that there is nothing to load."""
    return f"there is no {'tokenizer' if wanted.kind is Kind.TOKENIZER else 'model'} in it"


def counted(paths: list[Path]) -> tuple[Counter[str] | None, str | None]:
    """Count the elements of weights, if their format tells; and say what is damaged."""
    if not paths or any(path.suffix != ".safetensors" for path in paths):
        return None, None
    try:
        return headers.tensors(paths), None
    except headers.Unreadable as error:
        return None, str(error)


def text(path: Path | None) -> str:
    """Read a text; of a file that is not there, an empty one."""
    return path.read_text(errors="replace") if path and path.is_file() else ""


def _found(place: Path) -> Iterator[tuple[str, Path]]:
    for path in place.rglob("*"):
        # Not what a link leads to that leads nowhere.
        if path.is_file():
            yield path.relative_to(place).as_posix(), path
