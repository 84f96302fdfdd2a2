"""Describes models in directories: lists their files and checks whether these look complete."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from worker.store import files
from worker.store.files import CONFIG, INDEX
from worker.store.snapshot import Artifact, ArtifactKind, ArtifactLocation, File, Origin, Snapshot

# Part of safetensors' message about a file whose size does not match its header.
_INCOMPLETE = "incomplete metadata"


def read_snapshot(location: ArtifactLocation) -> Snapshot:
    """Read a directory's list of files, its config.json and the headers of its weights."""
    paths = dict(_files_with_relative_names(location.directory))
    named = files.weight_files(paths, read_text_or_empty(paths.get(INDEX)), location.artifact)
    weights = [name for name in named if name in paths]

    def to_files(names: list[str]) -> tuple[File, ...]:
        return tuple(File(name, paths[name].stat().st_size) for name in names)

    tensors, damage = count_elements([paths[name] for name in weights])
    return Snapshot(
        model=location.artifact.model,
        origin=location.origin,
        directory=location.directory,
        commit=location.commit,
        weights=to_files(weights),
        others=to_files(files.non_weight_files(paths)),
        absent_weights=tuple(name for name in named if name not in paths),
        config=files.parse_json_object(read_text_or_empty(paths.get(CONFIG))),
        tensors=tensors,
        damage=damage,
        skipped=location.skipped,
    )


def loading_problem(directory: Path, artifact: Artifact) -> str | None:
    """Return why a directory without a manifest can't be loaded, or None."""
    snapshot = read_snapshot(ArtifactLocation(artifact, directory, Origin.DIRECTORY))
    weights = [file.name for file in snapshot.weights]
    if problem := _weights_problem(weights, snapshot.absent_weights, snapshot.damage):
        return problem
    names = [file.name for file in (*snapshot.weights, *snapshot.others)]
    if not files.has_required_files(names, artifact):
        return nothing_to_load_message(artifact)
    if artifact.kind is ArtifactKind.MODEL and not snapshot.config:
        return f"{CONFIG} is missing"
    return None


def weights_problem(directory: Path, artifact: Artifact) -> str | None:
    """Return why the weights in an operator's directory can't be loaded, or None.

    Raises:
        OSError: The directory or a file can't be read.
    """
    patterns = files.weight_patterns(artifact.load_format)
    if not patterns:
        return None
    by_name = _candidate_weight_paths(directory)
    named = files.weight_files(by_name, read_text_or_empty(by_name.get(INDEX)), artifact)
    present = [name for name in named if name in by_name]
    absent = tuple(name for name in named if name not in by_name)
    _, damage = count_elements([by_name[name] for name in present])
    if problem := _weights_problem(present, absent, damage):
        return problem
    return None if named else f"no file matches {' or '.join(patterns)}"


def _weights_problem(
    present: Sequence[str], absent: Sequence[str], damage: str | None
) -> str | None:
    # The names of shards contain their total number. This covers weights without an index, and
    # shards that the index omits.
    if lacking := [*absent, *files.missing_shards(present)]:
        return f"{lacking[0]} is missing"
    return damage


def nothing_to_load_message(artifact: Artifact) -> str:
    kind = "tokenizer" if artifact.kind is ArtifactKind.TOKENIZER else "model"
    return f"there is no {kind} in it"


def count_elements(paths: list[Path]) -> tuple[Counter[str] | None, str | None]:
    """Return the number of elements of the weights by type, and a description of any damage.

    The types have safetensors' names. For other formats than safetensors, return (None, None).
    """
    if not paths or any(path.suffix != ".safetensors" for path in paths):
        return None, None
    counted: Counter[str] = Counter()
    for path in paths:
        try:
            for _, kind, shape in read_tensor_headers(path):
                counted[kind] += prod(shape)
        except SafetensorError as error:
            cut_off = _INCOMPLETE in str(error)
            return None, f"{path.name} {'is cut off' if cut_off else 'is not a safetensors file'}"
    return counted, None


def read_tensor_headers(path: Path) -> Iterator[tuple[str, str, Sequence[int]]]:
    """Yield the name, type and shape of each tensor of a file, with safetensors' names of types.

    Raises:
        OSError: The file can't be read.
        SafetensorError: The file is damaged.
    """
    with safe_open(path, "np") as opened:
        for name in opened.keys():  # noqa: SIM118 - ``opened`` is no mapping
            tensor = opened.get_slice(name)
            yield name, tensor.get_dtype(), tensor.get_shape()


def read_text_or_empty(path: Path | None) -> str:
    """Return the text of a file; an empty string if there is no file."""
    return path.read_text(errors="replace") if path and path.is_file() else ""


def weight_paths(directory: Path, artifact: Artifact) -> list[Path]:
    """Return the paths of the weights that are loaded from a directory, in the loader's order."""
    by_name = _candidate_weight_paths(directory)
    names = files.weight_files(by_name, read_text_or_empty(by_name.get(INDEX)), artifact)
    return [by_name[name] for name in names if name in by_name]


def _candidate_weight_paths(directory: Path) -> dict[str, Path]:
    """Return the files that may be weights, or their index, by name."""
    # Don't search the whole tree: the operator may have put anything below the directory.
    paths = [path for pattern in ("*", "*/*.safetensors") for path in directory.glob(pattern)]
    return {path.relative_to(directory).as_posix(): path for path in paths if path.is_file()}


def _files_with_relative_names(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in directory.rglob("*"):
        # Skip dangling links.
        if path.is_file():
            yield path.relative_to(directory).as_posix(), path
