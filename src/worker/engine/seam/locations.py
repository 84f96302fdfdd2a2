"""Names of vLLM that are looked up at runtime, each with its modules, the newest first.

When a release of vLLM moves a name, update its row here. A name has a row if a supported release
has it in another module or lacks it, or if its module must be imported late: vLLM is not imported
before the ports are open, and its server is not imported before the core has been forked. All other
names are imported where they are used.
"""

import importlib
from typing import Any

LOCATIONS: dict[str, tuple[str, ...]] = {
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "AttentionBackendEnum": ("vllm.v1.attention.backends.registry",),
    "CacheDType": ("vllm.config.cache",),
    "ChatCompletionRequest": ("vllm.entrypoints.openai.chat_completion.protocol",),
    "ChatTemplateResolutionError": (
        "vllm.exceptions",
        "vllm.renderers.chat_utils",
        "vllm.entrypoints.chat_utils",
    ),
    "DefaultModelLoader": ("vllm.model_executor.model_loader",),
    "ErrorResponse": ("vllm.entrypoints.serve.engine.protocol",),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils",),
    "FrontendArgs": ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args"),
    "FullAttentionSpec": ("vllm.v1.kv_cache_interface",),
    "KVCacheLayout": ("vllm.v1.kv_cache_layout",),
    "LinearBase": ("vllm.model_executor.layers.linear",),
    "CpuCommunicator": ("vllm.distributed.device_communicators.cpu_communicator",),
    "enable_scoring_api": ("vllm.entrypoints.pooling.utils",),
    "ReplicatedLinear": ("vllm.model_executor.layers.linear",),
    "LoadLoRAAdapterRequest": ("vllm.entrypoints.serve.lora.protocol",),
    "LoadFormats": ("vllm.model_executor.model_loader",),
    "MULTIMODAL_REGISTRY": ("vllm.multimodal",),
    "ModelRegistry": ("vllm.model_executor.models.registry",),
    "OMPProcessManager": ("vllm.utils.ompmultiprocessing",),
    "OnlineQuantizationConfig": ("vllm.model_executor.layers.quantization.online.base",),
    "QUANTIZATION_METHODS": ("vllm.model_executor.layers.quantization",),
    "ReasoningParserManager": ("vllm.reasoning",),
    "ResponsesRequest": ("vllm.entrypoints.openai.responses.protocol",),
    "SamplingParams": ("vllm.sampling_params",),
    "ToolParserManager": ("vllm.tool_parsers",),
    "UsageContext": ("vllm.usage.usage_lib",),
    "build_app": ("vllm.entrypoints.launchers.app",),
    "cached_tokenizer_from_config": ("vllm.tokenizers",),
    "current_platform": ("vllm.platforms",),
    "get_attn_backend": ("vllm.v1.attention.selector",),
    "get_kv_cache_configs": ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils"),
    "get_kv_cache_spec": ("vllm.v1.worker.gpu.attn_utils",),
    "get_max_concurrency_for_kv_cache_config": ("vllm.v1.core.kv_cache_utils",),
    "get_model_cls": ("vllm.model_executor.model_loader.utils",),
    "get_quantization_config": ("vllm.model_executor.layers.quantization",),
    "init_app_state": ("vllm.entrypoints.launchers.api_server.app_state",),
    "init_render_app_state": ("vllm.entrypoints.launchers.render.app_state",),
    "initialize_model": ("vllm.model_executor.model_loader.utils",),
    "Attention": ("vllm.model_executor.layers.attention",),
    "cpu_attn_get_scheduler_metadata": ("vllm._custom_ops",),
    "_get_attn_isa": ("vllm.v1.attention.backends.cpu_attn",),
    "supports_lora": ("vllm.model_executor.models",),
    "LoRAModel": ("vllm.lora.lora_model",),
    "get_supported_lora_modules": ("vllm.lora.utils",),
    "process_packed_modules_mapping": ("vllm.lora.utils",),
    "make_arg_parser": ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args"),
    "iter_architecture_defaults": ("vllm.config.model",),
    "disable_envs_cache": ("vllm.envs",),
    "enable_envs_cache": ("vllm.envs",),
    "max_memory_usage_bytes": ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils"),
    "parallel_state": ("vllm.distributed",),
    "select_common_block_size": ("vllm.v1.worker.utils",),
    "resolve_kv_cache_layout": ("vllm.v1.attention.backends.utils",),
    "set_current_vllm_config": ("vllm.config",),
    "validate_parsed_serve_args": (
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.launchers.cli_args",
    ),
}


class VllmNameNotFound(ImportError):
    """The installed vLLM has a name in none of the modules that are listed for it."""


def import_from_vllm(name: str) -> Any:
    """Return vLLM's ``name`` from the first of its modules that has it."""
    for location in LOCATIONS[name]:
        try:
            module = importlib.import_module(location)
        except ModuleNotFoundError as missing:
            # A missing dependency of vLLM is a different error.
            if not location.startswith(missing.name or "?"):
                raise
        else:
            if hasattr(module, name):
                return getattr(module, name)
    tried = ", ".join(LOCATIONS[name])
    raise VllmNameNotFound(
        f"vLLM's {name} is in none of {tried}: update worker/engine/seam/locations.py"
    )
