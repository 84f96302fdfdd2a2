"""Describes models in directories: lists their files and checks whether these look complete."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from worker.store import files
from worker.store.files import CONFIG, INDEX
from worker.store.refusals import ModelUnavailable, Reason
from worker.store.snapshot import Artifact, ArtifactKind, ArtifactLocation, File, Snapshot

# Part of safetensors' message about a file whose size does not match its header.
_INCOMPLETE = "incomplete metadata"
# Files by which a directory is recognized as an adapter, and as a pipeline of diffusers.
ADAPTER_CONFIG, PIPELINE_CONFIG = "adapter_config.json", "model_index.json"
# Start of a pointer of Git LFS, and the maximum size that its specification allows.
_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER_BYTES = 1024


def read_snapshot(location: ArtifactLocation) -> Snapshot:
    """Read a directory's list of files, its config.json and the headers of its weights."""
    paths = dict(_files_with_relative_names(location.directory))
    named = files.weight_files(paths, read_text_or_empty(paths.get(INDEX)), location.artifact)
    weights = [name for name in named if name in paths]

    def to_files(names: list[str]) -> tuple[File, ...]:
        return tuple(File(name, paths[name].stat().st_size) for name in names)

    return Snapshot(
        model=location.artifact.model,
        origin=location.origin,
        directory=location.directory,
        small_files=location.directory,
        commit=location.commit,
        weights=to_files(weights),
        others=to_files(files.non_weight_files(paths)),
        config=files.parse_json_object(read_text_or_empty(paths.get(CONFIG))),
        tensors=count_elements([paths[name] for name in weights])[0],
        skipped=location.skipped,
    )


def loading_problem(directory: Path, artifact: Artifact) -> str | None:
    """Return why a directory without a manifest can't be loaded, or None."""
    paths = dict(_files_with_relative_names(directory))
    named = files.weight_files(paths, read_text_or_empty(paths.get(INDEX)), artifact)
    if problem := _weights_problem(paths, named):
        return problem
    if not files.has_required_files([*named, *files.non_weight_files(paths)], artifact):
        return nothing_to_load_message(artifact)
    if artifact.kind is ArtifactKind.MODEL and not files.MODEL_CONFIGS & paths.keys():
        return f"{CONFIG} is missing"
    return None


def check_directory(location: ArtifactLocation) -> None:
    """Check that an operator's directory is of the artifact's kind, and that its weights load."""
    directory, artifact = location.directory, location.artifact
    by_name = _candidate_weight_paths(directory)

    def read_text(name: str) -> str:
        return read_text_or_empty(directory / name)

    if wrong := find_wrong_kind([path.name for path in directory.iterdir()], read_text, artifact):
        raise ModelUnavailable(artifact, *wrong)
    if artifact.kind is not ArtifactKind.MODEL:
        return
    named = files.weight_files(by_name, read_text(INDEX), artifact)
    for name in named:
        if name in by_name and is_lfs_pointer(by_name[name]):
            raise ModelUnavailable(artifact, Reason.LFS_POINTER, name)
    problem = _weights_problem(by_name, named)
    patterns = files.weight_patterns(artifact.load_format)
    if patterns and not named:
        problem = f"no file matches {' or '.join(patterns)}"
    if problem:
        raise ModelUnavailable(artifact, Reason.BROKEN_FILES, problem)


def find_wrong_kind(
    names: Sequence[str], read_text: Callable[[str], str], artifact: Artifact
) -> tuple[Reason, str] | None:
    """Return ``ModelUnavailable``'s arguments if the files are not such an artifact's, or None.

    ``read_text`` returns a file's text.
    """
    kind, wrong = artifact.kind, None
    if kind is ArtifactKind.TOKENIZER and not files.has_required_files(names, artifact):
        wrong = Reason.NOT_A_TOKENIZER, ""
    elif kind is ArtifactKind.ADAPTER and ADAPTER_CONFIG not in names:
        wrong = Reason.NOT_AN_ADAPTER, ""
    elif kind is not ArtifactKind.MODEL or files.MODEL_CONFIGS & {*names}:
        pass
    elif ADAPTER_CONFIG in names:
        base = files.parse_json_object(read_text(ADAPTER_CONFIG)).get("base_model_name_or_path")
        wrong = Reason.ADAPTER, str(base or "<its base model>")
    elif PIPELINE_CONFIG in names:
        wrong = Reason.PIPELINE, ""
    elif {"snapshots", "refs"} <= {*names}:
        folder = Path(artifact.model).absolute().name
        wrong = Reason.CACHE_FOLDER, "/".join(folder.split("--")[1:]) or "<owner>/<name>"
    return wrong


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is the pointer that Git leaves without its extension LFS."""
    if not path.is_file() or path.stat().st_size > _MAX_POINTER_BYTES:
        return False
    return path.read_bytes().startswith(_LFS_HEADER)


def _weights_problem(paths: Mapping[str, Path], named: Sequence[str]) -> str | None:
    """Return why some of the named weights can't be loaded, or None; ``paths`` are by name."""
    if INDEX in paths and not files.has_weight_map(read_text_or_empty(paths[INDEX])):
        # vLLM reads it whenever it exists.
        return f"{INDEX} has no weight_map"
    absent = [name for name in named if name not in paths]
    # The names of shards contain their total number. This covers weights without an index, and
    # shards that the index omits.
    if lacking := [*absent, *files.missing_shards(named)]:
        return f"{lacking[0]} is missing"
    return count_elements([paths[name] for name in named])[1]


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
    """Yield the name, type (safetensors' name of it) and shape of each tensor of a file."""
    with safe_open(path, "np") as opened:
        for name in opened.keys():  # noqa: SIM118 - ``opened`` is no mapping
            tensor = opened.get_slice(name)
            yield name, tensor.get_dtype(), tensor.get_shape()


def read_text_or_empty(path: Path | None) -> str:
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
