"""What a core would refuse when it starts, found before there is one: vLLM's own code is asked.

None of it needs weights. Each check raises ``StartFailed`` or ``ValueError``, in vLLM's words where
it has some; ``tables`` lists them in their order.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from worker.engine.arguments import EngineArguments
from worker.engine.machine import configures_for_cpu
from worker.engine.model_config import UNSERVED, is_served
from worker.engine.run.adapters.files import check_lora_modules
from worker.engine.seam.locations import find
from worker.engine.start.loading import LOADERS
from worker.errors import StartFailed
from worker.settings.environment import process_environ

# An operator that vLLM's builds for CPUs declare, and some of them lack.
_TO_FP8 = "static_scaled_fp8_quant"
# Packages by the values of options that need them.
_PACKAGES = {
    "LOAD_FORMAT": {
        **LOADERS,
        "modelexpress": "modelexpress",
        "runai_streamer_sharded": LOADERS["runai_streamer"],
        "tensorizer": "tensorizer",
    },
    "PREFIX_CACHING_HASH_ALGO": {"xxhash": "xxhash", "xxhash_cbor": "xxhash"},
}
# Files of a model that was saved in parts for GPUs.
_SHARDS = "model-rank-0-part-*.safetensors"


def check_task(_: EngineArguments, config: Any) -> None:
    """Check that a route of the worker can use the model."""
    if not is_served(config.model_config):
        raise StartFailed(UNSERVED)


def check_adapters(arguments: EngineArguments, config: Any) -> None:
    """Check the files of the adapters that LORA_MODULES names."""
    check_lora_modules(arguments.vllm.lora_modules or (), config)


def check_load_format(arguments: EngineArguments, _: Any) -> None:
    """Check that weights are there in the format in which a loader of its own reads them."""
    chosen, model = str(arguments.vllm.load_format), Path(arguments.vllm.model)
    if chosen == "sharded_state" and model.is_dir() and not any(model.glob(_SHARDS)):
        name = arguments.setting("LOAD_FORMAT")
        raise StartFailed(f"{name}={chosen}: there are no files {_SHARDS} in the model's directory")


def check_packages(arguments: EngineArguments, _: Any) -> None:
    """Check that there are packages that vLLM imports only where they are needed."""
    for option, packages in _PACKAGES.items():
        chosen = str(getattr(arguments.vllm, option.lower()))
        package = packages.get(chosen)
        if package and find_spec(package) is None:
            name = arguments.setting(option)
            raise StartFailed(
                f"{name}={chosen} needs the package {package}, which is not installed"
            )


def check_launcher(_: EngineArguments, config: Any) -> None:
    """Check that the program runs that is to have started this process, if there is to be one."""
    backend = config.parallel_config.distributed_executor_backend
    if backend == "external_launcher" and "RANK" not in process_environ():
        raise StartFailed(f"DISTRIBUTED_EXECUTOR_BACKEND={backend} is for processes of torchrun")


def check_seed(_: EngineArguments, config: Any) -> None:
    """Check that numpy, which a core seeds first, takes the seed."""
    if not 0 <= config.model_config.seed < 2**32:
        raise StartFailed("Seed must be between 0 and 2**32 - 1")


def check_processes(_: EngineArguments, config: Any) -> None:
    """Check that each process of an engine has a part of the CPU's memory to itself."""
    if not configures_for_cpu() or config.parallel_config.distributed_executor_backend != "mp":
        return
    try:
        find("OMPProcessManager")(config)
    except AssertionError as error:
        raise StartFailed(str(error)) from error


def check_quantization(_: EngineArguments, config: Any) -> None:
    """Check that vLLM's build can quantize weights to small floats while it loads them."""
    if not configures_for_cpu():
        return
    method = config.model_config.quantization or ""
    quant = config.quant_config
    online = isinstance(quant, find("OnlineQuantizationConfig")) or (
        getattr(quant, "is_checkpoint_fp8_serialized", True) is False
    )
    operator: Any = getattr(torch.ops._C, _TO_FP8, None)
    if online and "fp" in method and (operator is None or not operator.default._schema.arguments):
        raise StartFailed(f"this build of vLLM for CPUs can't quantize a model to {method}")


def check_offloading(_: EngineArguments, config: Any) -> None:
    """Check that there is a GPU from whose cache blocks could be offloaded."""
    if configures_for_cpu() and getattr(config.cache_config, "kv_offloading_size", None):
        raise StartFailed("KV_OFFLOADING_SIZE is for a GPU's cache, and there is none")


def check_blocks(_: EngineArguments, config: Any) -> None:
    """Check BLOCK_SIZE against the attention of a model whose layers are all alike.

    Only on CPUs, which have one such attention: on GPUs vLLM chooses it as it makes the layers.
    """
    if not configures_for_cpu():
        return
    model, cache = config.model_config, config.cache_config
    alike = not (model.use_mla or model.is_hybrid or model.is_attention_free)
    if not (alike and getattr(cache, "user_specified_block_size", False)):
        return
    with find("set_current_vllm_config")(config):
        backend = find("get_attn_backend")(model.get_head_size(), model.dtype, None)
    find("select_common_block_size")(cache.block_size, [backend])
