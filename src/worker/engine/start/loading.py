"""Chooses how vLLM reads weights: the loader, and the strategy for files on a network disk."""

from importlib.util import find_spec
from pathlib import Path

import psutil

from worker.engine.arguments import EngineArguments
from worker.engine.start import Start
from worker.process.memory import PAGE_CACHE_SHARE, page_cache_capacity

LOAD_FORMAT = "LOAD_FORMAT"
FAST_LOAD = "FAST_LOAD"

# vLLM's load formats for GPUs, fastest first, with the packages that they need.
LOADERS = {
    "instanttensor": "instanttensor",
    "fastsafetensors": "fastsafetensors",
    "runai_streamer": "runai_model_streamer",
}
# Loaders for network file systems, which may not support the other loaders' direct reads.
_NETWORK_LOADERS = {"runai_streamer"}
# Loaders that vLLM refuses for a draft model with pipeline parallelism.
_SINGLE_STAGE_LOADERS = {"fastsafetensors"}
# Options by which the operator chooses how weights are read.
_LOADING_OPTIONS = {LOAD_FORMAT, "SAFETENSORS_LOAD_STRATEGY", "MODEL_LOADER_EXTRA_CONFIG"}
# Prefix of weight files in Mistral's format, which the fast loaders don't support.
_MISTRAL_PREFIX = "consolidated"
# vLLM's load formats whose loader supports strategies.
_FORMATS = {"auto", "hf", "mistral", "safetensors"}
# Types of network file systems; RunPod's volume uses FUSE.
_NETWORK_TYPES = set(
    "9p afs beegfs ceph cifs fuse glusterfs gpfs lustre nfs nfs4 smb3 smbfs virtiofs wekafs".split()
)
# FUSE file systems that are local.
_LOCAL_FUSE_TYPES = {"fuse.fuse-overlayfs", "fuse.overlayfs"}


def with_fast_loader(arguments: EngineArguments, start: Start) -> EngineArguments:
    """Choose the fastest loader that the machine, the disk and the weights' format support.

    The arguments stay the same if no loader is suitable, if FAST_LOAD is off, or if the operator
    has chosen how weights are read.
    """
    files = safetensors_files(Path(arguments.vllm_args.model))
    is_mistral = any(file.name.startswith(_MISTRAL_PREFIX) for file in files)
    choices = _LOADING_OPTIONS & arguments.operator_options.keys()
    if not start.settings.fast_load or start.machine.cpu or choices or not files or is_mistral:
        return arguments
    loaders = set(LOADERS)
    file_system = file_system_type(files[0])
    if is_network_file_system(file_system):
        loaders &= _NETWORK_LOADERS
    if arguments.vllm_args.pipeline_parallel_size > 1:
        loaders -= _SINGLE_STAGE_LOADERS
    loader = next((name for name in LOADERS if name in loaders and find_spec(LOADERS[name])), None)
    if loader is None:
        return arguments
    disk = file_system or "this disk"
    reason = f"{FAST_LOAD}: the fastest loader that is installed, for weights on {disk}"
    return arguments.with_chosen_value(LOAD_FORMAT, loader, reason)


def with_prefetch_strategy(arguments: EngineArguments, _: Start) -> EngineArguments:
    """Make vLLM prefetch weights into the page cache if they fit and are on a network disk.

    By default, vLLM memory-maps files, which is slow on a network disk. The arguments stay the same
    if the operator has chosen a strategy or threads, or if the load format has no strategies.
    """
    options = arguments.vllm_args
    is_threaded = dict(options.model_loader_extra_config or {}).get("enable_multithread_load")
    has_strategy = options.safetensors_load_strategy is not None
    files = safetensors_files(Path(options.model))
    if has_strategy or is_threaded or str(options.load_format).lower() not in _FORMATS or not files:
        return arguments
    file_system = file_system_type(files[0])
    size = sum(file.stat().st_size for file in files)
    if not is_network_file_system(file_system) or size > PAGE_CACHE_SHARE * page_cache_capacity():
        return arguments
    reason = f"the weights are on a network disk, {file_system}, and fit into memory"
    return arguments.with_chosen_value("SAFETENSORS_LOAD_STRATEGY", "prefetch", reason)


def without_fast_loader(arguments: EngineArguments, _: Exception) -> EngineArguments | None:
    """Return the arguments with vLLM's own loader; None if the worker chose no other loader."""
    if all(default.name != LOAD_FORMAT for default in arguments.defaults):
        return None
    return arguments.with_chosen_value(
        LOAD_FORMAT, "auto", f"{arguments.vllm_args.load_format} failed"
    )


def safetensors_files(directory: Path) -> list[Path]:
    """Return the resolved paths of a model's weight files that vLLM can memory-map."""
    return [path.resolve() for path in directory.glob("*.safetensors")]


def file_system_type(file: Path) -> str:
    """Return the type of the file system of a resolved path; blank if it is unknown."""
    mounts = [
        (len(Path(mount.mountpoint).parts), order, mount.fstype)
        for order, mount in enumerate(psutil.disk_partitions(all=True))
        if mount.fstype and file.is_relative_to(mount.mountpoint)
    ]
    # A later mount hides an earlier mount with the same path.
    return max(mounts, default=(0, 0, ""))[2]


def is_network_file_system(kind: str) -> bool:
    """Return whether a file system of this type stores files on another machine."""
    return kind in _NETWORK_TYPES or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE_TYPES)
