"""How weights are read, by where they lie: vLLM maps files, which is slow over a network."""

import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from worker.engine.arguments import EngineArguments
from worker.engine.machine import available_memory
from worker.settings.environment import Default

MOUNTS = Path("/proc/mounts")

# Those of vLLM's formats whose loader heeds the strategy.
_FORMATS = {"auto", "hf", "mistral", "safetensors"}
# File systems whose files lie on another machine; RunPod's volume is one of FUSE's.
_NETWORK = set(
    "9p afs beegfs ceph cifs fuse glusterfs gpfs lustre nfs nfs4 smb3 smbfs virtiofs wekafs".split()
)
# FUSE also has some that lie on this one.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.overlayfs"}
# What is read ahead of vLLM stays in the page cache, beside what the engine itself takes.
_SHARE = 0.8


def with_load_strategy(arguments: EngineArguments) -> EngineArguments:
    """Have vLLM read weights as it suits the disk that they lie on.

    Args:
        arguments: with a directory as the model, if it is on the disk.
    """
    folder = Path(arguments.vllm.model)
    if not folder.is_dir() or not MOUNTS.is_file():
        return arguments
    chosen = strategy(arguments.vllm, folder, available_memory(), MOUNTS.read_text())
    return arguments.with_default(chosen, chosen.value) if chosen else arguments


def strategy(arguments: Namespace, folder: Path, memory: int, mounts: str) -> Default | None:
    """Choose how vLLM reads weights; None where its own way is as good, or the operator chose.

    Args:
        arguments: vLLM's.
        folder: where the weights lie.
        memory: that the page cache can take, in bytes.
        mounts: the text of ``/proc/mounts``.
    """
    several_threads = dict(arguments.model_loader_extra_config or {}).get("enable_multithread_load")
    chosen = arguments.safetensors_load_strategy is not None
    if chosen or several_threads or str(arguments.load_format).lower() not in _FORMATS:
        return None
    weights = [path.resolve() for path in folder.glob("*.safetensors")]
    if not weights:
        return None
    kind = file_system(weights[0], mounts)
    if not _over_network(kind) or sum(_sizes(weights)) > _SHARE * memory:
        return None
    why = f"the weights lie on a network disk, {kind}, and fit into memory"
    return Default("SAFETENSORS_LOAD_STRATEGY", "prefetch", why)


def file_system(path: Path, mounts: str) -> str:
    """Name the type of the file system that a path lies on; nothing, if that is not known.

    Args:
        path: absolute, without symbolic links.
        mounts: the text of ``/proc/mounts``.
    """
    found = ""
    deepest = -1
    for line in mounts.splitlines():
        _, point, kind, *_ = (*line.split(), "", "", "")
        # Spaces and the like are written as octal numbers.
        place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        # Of two at one place the later one hides the earlier one.
        if kind and path.is_relative_to(place) and len(place.parts) >= deepest:
            found, deepest = kind, len(place.parts)
    return found


def _over_network(kind: str) -> bool:
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _sizes(paths: list[Path]) -> Iterator[int]:
    return (path.stat().st_size for path in paths)
