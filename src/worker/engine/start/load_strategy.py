"""Chooses how vLLM reads weights: it maps files, which is slow on a network disk."""

import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from worker.engine.arguments import EngineArguments
from worker.memory import CACHE_SHARE, available_memory
from worker.settings.environment import Default

MOUNTS = Path("/proc/mounts")

# vLLM's load formats whose loader has strategies.
_FORMATS = {"auto", "hf", "mistral", "safetensors"}
# Types of network file systems; RunPod's volume is a FUSE one.
_NETWORK = set(
    "9p afs beegfs ceph cifs fuse glusterfs gpfs lustre nfs nfs4 smb3 smbfs virtiofs wekafs".split()
)
# FUSE file systems that are local.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.overlayfs"}


def with_load_strategy(arguments: EngineArguments) -> EngineArguments:
    """Choose vLLM's strategy for reading weights by the disk that they are on.

    Args:
        arguments: of an engine, once its model was found.
    """
    folder = Path(arguments.vllm.model)
    if not folder.is_dir() or not MOUNTS.is_file():
        return arguments
    chosen = strategy(arguments.vllm, folder, available_memory(), MOUNTS.read_text())
    return arguments.with_default(chosen, chosen.value) if chosen else arguments


def strategy(options: Namespace, folder: Path, memory: int, mounts: str) -> Default | None:
    """Choose how vLLM reads weights; None if it is set, or vLLM's own way is as good.

    Args:
        options: vLLM's arguments.
        folder: of the weights.
        memory: bytes that the page cache can take.
        mounts: the text of ``/proc/mounts``.
    """
    several_threads = dict(options.model_loader_extra_config or {}).get("enable_multithread_load")
    chosen = options.safetensors_load_strategy is not None
    if chosen or several_threads or str(options.load_format).lower() not in _FORMATS:
        return None
    files = weights(folder)
    if not files:
        return None
    kind = file_system(files[0], mounts)
    if not is_network(kind) or sum(_sizes(files)) > CACHE_SHARE * memory:
        return None
    why = f"the weights lie on a network disk, {kind}, and fit into memory"
    return Default("SAFETENSORS_LOAD_STRATEGY", "prefetch", why)


def weights(folder: Path) -> list[Path]:
    """Return the files of a model's weights, without symbolic links, if vLLM can map them."""
    return [path.resolve() for path in folder.glob("*.safetensors")]


def disk_of(file: Path) -> str:
    """Return the type of the file system that a file is on; blank if it is unknown."""
    return file_system(file, MOUNTS.read_text()) if MOUNTS.is_file() else ""


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system that a path is on; blank if it is unknown.

    Args:
        path: absolute, without symbolic links.
        mounts: the text of ``/proc/mounts``.
    """
    found = ""
    deepest = -1
    for line in mounts.splitlines():
        _, point, kind, *_ = (*line.split(), "", "", "")
        # Spaces and the like are escaped as octal numbers.
        place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        # A later mount hides an earlier one at the same place.
        if kind and path.is_relative_to(place) and len(place.parts) >= deepest:
            found, deepest = kind, len(place.parts)
    return found


def is_network(kind: str) -> bool:
    """Whether files of a file system of this type lie on another machine."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _sizes(paths: list[Path]) -> Iterator[int]:
    return (path.stat().st_size for path in paths)
