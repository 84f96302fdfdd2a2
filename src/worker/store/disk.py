"""Models in directories: which files they have, and whether these look complete."""

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from worker.store import files
from worker.store.files import CONFIG, INDEX
from worker.store.snapshot import File, Kind, Origin, Snapshot, Wanted

# What safetensors says of a file whose size is not that of its header's tensors.
_INCOMPLETE = "incomplete metadata"


def describe(wanted: Wanted, origin: Origin, place: Path, commit: str | None = None) -> Snapshot:
    """Describe the model in a directory, by its files, its config and its headers."""
    found = dict(_found(place))
    named = files.weights(found, text(found.get(INDEX)), wanted)
    weights = [name for name in named if name in found]

    def listed(names: list[str]) -> tuple[File, ...]:
        return tuple(File(name, found[name].stat().st_size) for name in names)

    tensors, damaged = count_elements([found[name] for name in weights])
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
    """Return why a directory without a manifest can't be loaded, or None."""
    found = describe(wanted, Origin.DIRECTORY, place)
    weights = [file.name for file in found.weights]
    # Names of shards say how many there are, in place of an index, or of shards that it names.
    if lacking := [*found.lacking, *files.shards_lacking(weights)]:
        return f"{lacking[0]} is missing"
    if found.damaged:
        return found.damaged
    names = [file.name for file in (*found.weights, *found.others)]
    if not files.loadable(names, wanted):
        return nothing_to_load(wanted)
    if wanted.kind is Kind.MODEL and not found.config:
        return f"{CONFIG} is missing"
    return None


def nothing_to_load(wanted: Wanted) -> str:
    """Return the message for a directory without anything to load."""
    return f"there is no {'tokenizer' if wanted.kind is Kind.TOKENIZER else 'model'} in it"


def count_elements(paths: list[Path]) -> tuple[Counter[str] | None, str | None]:
    """Return the number of elements of weights by the format's names of types, and what is damaged.

    Both are None for formats other than safetensors.
    """
    if not paths or any(path.suffix != ".safetensors" for path in paths):
        return None, None
    counted: Counter[str] = Counter()
    for path in paths:
        try:
            with safe_open(path, "np") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    tensor = opened.get_slice(name)
                    counted[tensor.get_dtype()] += prod(tensor.get_shape())
        except (OSError, SafetensorError) as error:
            cut_off = _INCOMPLETE in str(error)
            return None, f"{path.name} {'is cut off' if cut_off else 'is no safetensors file'}"
    return counted, None


def text(path: Path | None) -> str:
    """Return the text of a file; an empty one, if there is no file."""
    return path.read_text(errors="replace") if path and path.is_file() else ""


def weights(place: Path, wanted: Wanted) -> list[Path]:
    """Return the files of the weights that are loaded from a directory, in the loader's order."""
    # Not the whole tree: the directory may be the operator's, with anything else below it.
    paths = [path for pattern in ("*", "*/*.safetensors") for path in place.glob(pattern)]
    found = {path.relative_to(place).as_posix(): path for path in paths if path.is_file()}
    named = files.weights(found, text(found.get(INDEX)), wanted)
    return [found[name] for name in named if name in found]


def _found(place: Path) -> Iterator[tuple[str, Path]]:
    for path in place.rglob("*"):
        # Dangling links are skipped.
        if path.is_file():
            yield path.relative_to(place).as_posix(), path
