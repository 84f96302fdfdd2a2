"""Models in directories: which files they have, and whether these look complete."""

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from worker.store import files
from worker.store.files import CONFIG, INDEX
from worker.store.snapshot import File, Found, Kind, Origin, Snapshot, Wanted

# What safetensors says of a file whose size is not that of its header's tensors.
_INCOMPLETE = "incomplete metadata"


def describe(found: Found) -> Snapshot:
    """Describe the model in a directory, by its files, its config and its headers."""
    paths = dict(_files(found.place))
    named = files.weights(paths, text(paths.get(INDEX)), found.wanted)
    weights = [name for name in named if name in paths]

    def listed(names: list[str]) -> tuple[File, ...]:
        return tuple(File(name, paths[name].stat().st_size) for name in names)

    tensors, damaged = count_elements([paths[name] for name in weights])
    return Snapshot(
        model=found.wanted.model,
        origin=found.origin,
        place=found.place,
        commit=found.commit,
        weights=listed(weights),
        others=listed(files.others(paths)),
        lacking=tuple(name for name in named if name not in paths),
        config=files.json_object(text(paths.get(CONFIG))),
        tensors=tensors,
        damaged=damaged,
        passed=found.passed,
    )


def lacks(place: Path, wanted: Wanted) -> str | None:
    """Return why a directory without a manifest can't be loaded, or None."""
    found = describe(Found(wanted, place, Origin.DIRECTORY))
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


def _files(place: Path) -> Iterator[tuple[str, Path]]:
    for path in place.rglob("*"):
        # Dangling links are skipped.
        if path.is_file():
            yield path.relative_to(place).as_posix(), path
