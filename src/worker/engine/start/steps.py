"""Steps of a start, each of which returns a changed copy of an engine's arguments.

``tables`` says in which order they run. The last ones are for a second core: after a death, and
after a start that failed.
"""

import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from worker.engine.arguments import EngineArguments
from worker.engine.model_config import create_model_config
from worker.engine.options.automatic import MEMORY_OPTION, choose_tensor_parallel_size
from worker.engine.run.core import CoreFailed
from worker.engine.seam.translation import is_out_of_memory
from worker.engine.start import Start
from worker.engine.start.artifacts import artifacts_in_arguments
from worker.process.memory import PAGE_CACHE_SHARE, page_cache_capacity
from worker.store import ArtifactKind, Origin

FAST_LOAD = "FAST_LOAD"
LOAD_FORMAT = "LOAD_FORMAT"
MAX_NUM_SEQS = "MAX_NUM_SEQS"
RENDERER_NUM_WORKERS = "RENDERER_NUM_WORKERS"
TENSOR_PARALLEL_SIZE = "TENSOR_PARALLEL_SIZE"

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

# Factor for the GPU's memory share, and divisor for MAX_NUM_SEQS, in the second attempt.
MEMORY_FACTOR = 0.9
SEQUENCES_DIVISOR = 4
RETRY_REASON = "the memory was full at the first try"


def with_artifact_directories(arguments: EngineArguments, start: Start) -> EngineArguments:
    """Replace repositories by the directories of their files; add the model's origin and commit."""
    for artifact in artifacts_in_arguments(arguments):
        location = start.locations.get(artifact)
        if location is None or location.origin is Origin.DIRECTORY:
            continue
        options, path = arguments.vllm_args, str(location.directory)
        speculative_config = options.speculative_config
        changes: dict[str, Any]
        if artifact.kind is ArtifactKind.ADAPTER:
            modules = [copy.copy(module) for module in options.lora_modules]
            for module in modules:
                if module.path == artifact.model:
                    module.path = path
            changes = {"lora_modules": modules}
        elif artifact.kind is ArtifactKind.TOKENIZER:
            changes = {"tokenizer": path}
        elif artifact.setting.endswith("SPECULATIVE_CONFIG"):
            changes = {"speculative_config": {**speculative_config, "model": path}}
        else:
            changes = {"model": path}
            if options.tokenizer == options.model:
                changes["tokenizer"] = path
            if speculative_config and speculative_config.get("model") == options.model:
                changes["speculative_config"] = {**speculative_config, "model": path}
            arguments = replace(arguments, origin=location.origin, commit=location.commit)
        arguments = arguments.with_options(**changes)
    return arguments


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


def with_lora_enabled(arguments: EngineArguments, start: Start) -> EngineArguments:
    """Enable adapters on a worker that only trains, which reserves no memory for them."""
    return arguments.with_options(enable_lora=True) if start.only_trains else arguments


def with_tensor_parallel_size(arguments: EngineArguments, _: Start) -> EngineArguments:
    """Reduce a tensor parallel size that the worker chose to a divisor of the attention heads."""
    if all(default.name != TENSOR_PARALLEL_SIZE for default in arguments.defaults):
        return arguments
    gpus: int = arguments.vllm_args.tensor_parallel_size
    architecture = create_model_config(arguments).model_arch_config
    size = choose_tensor_parallel_size(gpus, architecture.total_num_attention_heads)
    if size == gpus:
        return arguments
    reason = f"as many of {gpus} GPUs as can share its attention heads"
    return arguments.with_chosen_value(TENSOR_PARALLEL_SIZE, size, reason)


def with_renderer_workers(arguments: EngineArguments, _: Start) -> EngineArguments:
    """Make vLLM tokenize in two threads, so that a long text leaves one thread free.

    The arguments stay the same if the operator has set the number, without a tokenizer, and for
    multimodal pooling models, whose cache is not thread-safe.
    """
    if RENDERER_NUM_WORKERS in arguments.operator_options:
        return arguments
    config = create_model_config(arguments)
    is_multimodal_pooling = config.runner_type == "pooling" and config.multimodal_config
    if config.skip_tokenizer_init or is_multimodal_pooling:
        return arguments
    return arguments.with_chosen_value(RENDERER_NUM_WORKERS, 2, "one of them is free of long texts")


def with_same_context_length(arguments: EngineArguments) -> EngineArguments:
    """Use a dead core's context length for the new core, which retries the dead core's requests."""
    return arguments.with_options(max_model_len=arguments.config.model_config.max_model_len)


def without_fast_loader(arguments: EngineArguments, _: Exception) -> EngineArguments | None:
    """Return the arguments with vLLM's own loader; None if the worker chose no other loader."""
    if all(default.name != LOAD_FORMAT for default in arguments.defaults):
        return None
    return arguments.with_chosen_value(
        LOAD_FORMAT, "auto", f"{arguments.vllm_args.load_format} failed"
    )


def with_less_memory(arguments: EngineArguments, error: Exception) -> EngineArguments | None:
    """Return arguments for a second attempt that uses less memory.

    Returns None if the first attempt had enough memory, if the weights alone were too large, or if
    no unset option can be reduced.
    """
    weights_too_large = isinstance(error, CoreFailed) and error.loader_function
    if weights_too_large or not is_out_of_memory(str(error)):
        return None
    reduced, config = arguments, arguments.config
    if (
        MEMORY_OPTION not in arguments.operator_options
        and config.device_config.device_type != "cpu"
    ):
        share = round(arguments.vllm_args.gpu_memory_utilization * MEMORY_FACTOR, 3)
        reduced = reduced.with_chosen_value(MEMORY_OPTION, share, RETRY_REASON)
    sequences = max(1, config.scheduler_config.max_num_seqs // SEQUENCES_DIVISOR)
    if (
        MAX_NUM_SEQS not in arguments.operator_options
        and sequences < config.scheduler_config.max_num_seqs
    ):
        reduced = reduced.with_chosen_value(MAX_NUM_SEQS, sequences, RETRY_REASON)
    return None if reduced is arguments else reduced


def safetensors_files(directory: Path) -> list[Path]:
    """Return the resolved paths of a model's weight files that vLLM can memory-map."""
    return [path.resolve() for path in directory.glob("*.safetensors")]


def file_system_type(file: Path) -> str:
    mounts = [
        (len(Path(mount.mountpoint).parts), order, mount.fstype)
        for order, mount in enumerate(psutil.disk_partitions(all=True))
        if mount.fstype and file.is_relative_to(mount.mountpoint)
    ]
    # A later mount hides an earlier mount with the same path.
    return max(mounts, default=(0, 0, ""))[2]


def is_network_file_system(kind: str) -> bool:
    return kind in _NETWORK_TYPES or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE_TYPES)
