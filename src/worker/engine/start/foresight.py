"""What a core would refuse when it starts, found before there is one: vLLM's own code is asked.

None of it needs weights. Each check raises ``StartFailed`` or ``ValueError``, in vLLM's words where
it has some.
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


def check_anywhere(arguments: EngineArguments, config: Any) -> None:
    """Check what does not depend on the machine."""
    model, backend = config.model_config, config.parallel_config.distributed_executor_backend
    if not is_served(model):
        raise StartFailed(UNSERVED)
    check_lora_modules(arguments.vllm.lora_modules or (), config)
    chosen, folder = str(arguments.vllm.load_format), Path(arguments.vllm.model)
    if chosen == "sharded_state" and folder.is_dir() and not any(folder.glob(_SHARDS)):
        name = arguments.setting("LOAD_FORMAT")
        raise StartFailed(f"{name}={chosen}: there are no files {_SHARDS} in the model's directory")
    # vLLM imports some packages only where they are needed.
    for option, packages in _PACKAGES.items():
        chosen = str(getattr(arguments.vllm, option.lower()))
        if (package := packages.get(chosen)) and find_spec(package) is None:
            name = arguments.setting(option)
            raise StartFailed(
                f"{name}={chosen} needs the package {package}, which is not installed"
            )
    if backend == "external_launcher" and "RANK" not in process_environ():
        raise StartFailed(f"DISTRIBUTED_EXECUTOR_BACKEND={backend} is for processes of torchrun")
    # A core seeds numpy first.
    if not 0 <= model.seed < 2**32:
        raise StartFailed("Seed must be between 0 and 2**32 - 1")


def check_on_cpu(_: EngineArguments, config: Any) -> None:
    """Check what vLLM's builds for CPUs lack, and what needs a GPU."""
    if not configures_for_cpu():
        return
    if config.parallel_config.distributed_executor_backend == "mp":
        try:
            # Each process has a part of the memory to itself.
            find("OMPProcessManager")(config)
        except AssertionError as error:
            raise StartFailed(str(error)) from error
    method = config.model_config.quantization or ""
    operator: Any = getattr(torch.ops._C, _TO_FP8, None)
    lacking = operator is None or not operator.default._schema.arguments
    if "fp" in method and lacking and _quantizes_while_loading(config.quant_config):
        raise StartFailed(f"this build of vLLM for CPUs can't quantize a model to {method}")
    if getattr(config.cache_config, "kv_offloading_size", None):
        raise StartFailed("KV_OFFLOADING_SIZE is for a GPU's cache, and there is none")
    _check_block_size(config)


def _quantizes_while_loading(quantization: Any) -> bool:
    serialized = getattr(quantization, "is_checkpoint_fp8_serialized", True)
    return serialized is False or isinstance(quantization, find("OnlineQuantizationConfig"))


def _check_block_size(config: Any) -> None:
    """Check BLOCK_SIZE against the attention of a model whose layers are all alike.

    Only on CPUs, which have one such attention: on GPUs vLLM chooses it as it makes the layers.
    """
    model, cache = config.model_config, config.cache_config
    alike = not (model.use_mla or model.is_hybrid or model.is_attention_free)
    if alike and getattr(cache, "user_specified_block_size", False):
        with find("set_current_vllm_config")(config):
            backend = find("get_attn_backend")(model.get_head_size(), model.dtype, None)
        find("select_common_block_size")(cache.block_size, [backend])
