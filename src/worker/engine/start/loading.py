"""Chooses how vLLM reads weights: by which loader, and how files on a network disk."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from worker.engine.arguments import EngineArguments, StartContext
from worker.process.memory import CACHE_SHARE, available_memory

LOAD_FORMAT = "LOAD_FORMAT"
SETTING = "FAST_LOAD"

# vLLM's load formats for GPUs, the fastest first, by the packages that they need.
LOADERS = {
    "instanttensor": "instanttensor",
    "fastsafetensors": "fastsafetensors",
    "runai_streamer": "runai_model_streamer",
}
# The others read around the page cache, which a network file system need not allow.
_OVER_NETWORK = {"runai_streamer"}
# Refused by vLLM for a draft model with pipeline parallelism.
_ONE_STAGE = {"fastsafetensors"}
# Options by which the operator chooses how weights are read.
_CHOICES = {LOAD_FORMAT, "SAFETENSORS_LOAD_STRATEGY", "MODEL_LOADER_EXTRA_CONFIG"}
# Weights that vLLM reads in Mistral's format, which is not among the loaders'.
_MISTRALS = "consolidated"
# vLLM's load formats whose loader has strategies.
_FORMATS = {"auto", "hf", "mistral", "safetensors"}
# Types of network file systems; RunPod's volume is a FUSE one.
_NETWORK = set(
    "9p afs beegfs ceph cifs fuse glusterfs gpfs lustre nfs nfs4 smb3 smbfs virtiofs wekafs".split()
)
# FUSE file systems that are local.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.overlayfs"}


def with_fast_loader(arguments: EngineArguments, context: StartContext) -> EngineArguments:
    """Choose the fastest loader that the machine, the disk and the weights' format allow.

    The arguments stay the same if there is none, if FAST_LOAD is off, or if the operator has chosen
    how weights are read.
    """
    files = weights(Path(arguments.vllm.model))
    foreign = any(file.name.startswith(_MISTRALS) for file in files)
    chosen_by_operator = _CHOICES & arguments.given.keys()
    if not context.fast_load or context.machine.cpu or chosen_by_operator or not files or foreign:
        return arguments
    fitting = set(LOADERS)
    disk = file_system(files[0])
    if is_network(disk):
        fitting &= _OVER_NETWORK
    if arguments.vllm.pipeline_parallel_size > 1:
        fitting -= _ONE_STAGE
    chosen = next((name for name in LOADERS if name in fitting and find_spec(LOADERS[name])), None)
    if chosen is None:
        return arguments
    why = f"{SETTING}: the fastest loader that is installed, for weights on {disk or 'this disk'}"
    return arguments.with_default(LOAD_FORMAT, chosen, why)


def with_load_strategy(arguments: EngineArguments, _: StartContext) -> EngineArguments:
    """Let vLLM read weights into the page cache at once, if they fit and are on a network disk.

    It maps files, which is slow there. The arguments stay the same if the operator has chosen how
    weights are read.
    """
    options = arguments.vllm
    several_threads = dict(options.model_loader_extra_config or {}).get("enable_multithread_load")
    chosen = options.safetensors_load_strategy is not None
    files = weights(Path(options.model))
    if chosen or several_threads or str(options.load_format).lower() not in _FORMATS or not files:
        return arguments
    disk = file_system(files[0])
    size = sum(file.stat().st_size for file in files)
    if not is_network(disk) or size > CACHE_SHARE * available_memory():
        return arguments
    why = f"the weights lie on a network disk, {disk}, and fit into memory"
    return arguments.with_default("SAFETENSORS_LOAD_STRATEGY", "prefetch", why)


def without_fast_loader(arguments: EngineArguments, *_: Any) -> EngineArguments | None:
    """Return the arguments with vLLM's own loader; None if no other was chosen for them."""
    if all(default.name != LOAD_FORMAT for default in arguments.defaults):
        return None
    return arguments.with_default(LOAD_FORMAT, "auto", f"{arguments.vllm.load_format} failed")


def weights(folder: Path) -> list[Path]:
    """Return the files of a model's weights, without symbolic links, if vLLM can map them."""
    return [path.resolve() for path in folder.glob("*.safetensors")]


def file_system(file: Path) -> str:
    """Return the type of the file system of a resolved path; blank if it is unknown."""
    mounts = [
        (len(Path(mount.mountpoint).parts), order, mount.fstype)
        for order, mount in enumerate(psutil.disk_partitions(all=True))
        if mount.fstype and file.is_relative_to(mount.mountpoint)
    ]
    # A later mount hides an earlier one at the same place.
    return max(mounts, default=(0, 0, ""))[2]


def is_network(kind: str) -> bool:
    """Return whether files of a file system of this type lie on another machine."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
