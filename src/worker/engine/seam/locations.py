"""The modules of vLLM's names that the worker uses: when a release moves one, mend its row here.

Each row lists the modules to try, newest first. A module is imported on first use, to keep the
start fast.
"""

import importlib
from typing import Any

_SERVE_ARGUMENTS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
_APP = "vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"
_APP_STATE = (
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.openai.api_server",
)

LOCATIONS: dict[str, tuple[str, ...]] = {
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "AttentionBackendEnum": ("vllm.v1.attention.backends.registry",),
    "BeamSearchParams": ("vllm.sampling_params",),
    "CPUWorker": ("vllm.v1.worker.cpu_worker",),
    "ChatCompletionRequest": (
        "vllm.entrypoints.openai.chat_completion.protocol",
        "vllm.entrypoints.openai.protocol",
    ),
    "ChatTemplateResolutionError": ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils"),
    "DeviceCapability": ("vllm.platforms.interface",),
    "EmbeddingRequestOutput": ("vllm.outputs",),
    "EngineDeadError": ("vllm.v1.engine.exceptions",),
    "EngineGenerateError": ("vllm.v1.engine.exceptions",),
    "ErrorResponse": ("vllm.entrypoints.serve.engine.protocol", "vllm.entrypoints.openai.protocol"),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils", "vllm.utils"),
    "FrontendArgs": _SERVE_ARGUMENTS,
    "FullAttentionSpec": ("vllm.v1.kv_cache_interface",),
    "GracefulHTTPError": ("vllm.exceptions",),
    "KVCacheLayout": ("vllm.v1.kv_cache_layout",),
    "LinearBase": ("vllm.model_executor.layers.linear",),
    "LoadLoRAAdapterRequest": (
        "vllm.entrypoints.serve.lora.protocol",
        "vllm.entrypoints.openai.protocol",
    ),
    "LoadFormats": ("vllm.model_executor.model_loader",),
    "LoRAConfig": ("vllm.config",),
    "LoRARequest": ("vllm.lora.request",),
    "ModelRegistry": ("vllm.model_executor.models.registry", "vllm.model_executor.models"),
    "OMPProcessManager": ("vllm.utils.ompmultiprocessing",),
    "OnlineQuantizationConfig": ("vllm.model_executor.layers.quantization.online.base",),
    "PEFTHelper": ("vllm.lora.peft_helper",),
    "Platform": ("vllm.platforms.interface",),
    "PlatformEnum": ("vllm.platforms.interface",),
    "PoolingParams": ("vllm.pooling_params",),
    "QUANTIZATION_METHODS": ("vllm.model_executor.layers.quantization",),
    "ReasoningParserManager": ("vllm.reasoning",),
    "RepetitionDetectionParams": ("vllm.sampling_params",),
    "RequestOutputKind": ("vllm.sampling_params",),
    "ResponsesRequest": (
        "vllm.entrypoints.openai.responses.protocol",
        "vllm.entrypoints.openai.protocol",
    ),
    "RetryableRequestError": ("vllm.exceptions",),
    "SamplingParams": ("vllm.sampling_params",),
    "StructuredOutputsParams": ("vllm.sampling_params",),
    "ToolParserManager": ("vllm.tool_parsers",),
    "UsageContext": ("vllm.usage.usage_lib",),
    "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": ("vllm.envs",),
    "VLLMClientError": ("vllm.exceptions",),
    "VLLMError": ("vllm.exceptions",),
    "VLLMNotFoundError": ("vllm.exceptions",),
    "VLLMUnprocessableEntityError": ("vllm.exceptions",),
    "VLLMValidationError": ("vllm.exceptions",),
    "XgrammarBackend": ("vllm.v1.structured_output.backend_xgrammar",),
    "build_app": _APP,
    "cached_tokenizer_from_config": ("vllm.tokenizers", "vllm.transformers_utils.tokenizer"),
    "current_platform": ("vllm.platforms",),
    "StatLoggerBase": ("vllm.v1.metrics.loggers",),
    "grammar_is_likely_lark": ("vllm.v1.structured_output.utils",),
    "get_allowed_cpu_list": ("vllm.utils.cpu_resource_utils",),
    "get_memory_node_info": ("vllm.utils.cpu_resource_utils",),
    "get_attn_backend": ("vllm.v1.attention.selector", "vllm.attention.selector"),
    "get_kv_cache_configs": ("vllm.v1.core.kv_cache_utils",),
    "get_kv_cache_spec": ("vllm.v1.worker.gpu.attn_utils",),
    "get_max_concurrency_for_kv_cache_config": ("vllm.v1.core.kv_cache_utils",),
    "get_quantization_config": ("vllm.model_executor.layers.quantization",),
    "import_pynvml": ("vllm.utils.import_utils",),
    "init_app_state": _APP_STATE,
    "init_render_app_state": (
        "vllm.entrypoints.launchers.render.app_state",
        "vllm.entrypoints.openai.api_server",
    ),
    "initialize_model": ("vllm.model_executor.model_loader.utils",),
    "make_arg_parser": _SERVE_ARGUMENTS,
    "iter_architecture_defaults": ("vllm.config.model",),
    "disable_envs_cache": ("vllm.envs",),
    "enable_envs_cache": ("vllm.envs",),
    "max_memory_usage_bytes": ("vllm.v1.core.kv_cache_utils",),
    "parallel_state": ("vllm.distributed",),
    "sanitize_message": (
        "vllm.entrypoints.serve.exception_handling.utils",
        "vllm.entrypoints.serve.exception_handler.utils",
        "vllm.entrypoints.utils",
    ),
    "parse_model_prompt": ("vllm.renderers.inputs.preprocess",),
    "select_common_block_size": ("vllm.v1.worker.utils",),
    "resolve_kv_cache_layout": ("vllm.v1.attention.backends.utils",),
    "set_current_vllm_config": ("vllm.config",),
    "validate_parsed_serve_args": _SERVE_ARGUMENTS,
}

# Names that some supported release lacks.
OPTIONAL = frozenset(
    {
        "OMPProcessManager",
        "OnlineQuantizationConfig",
        "RetryableRequestError",
        "get_allowed_cpu_list",
        "get_memory_node_info",
        "init_render_app_state",
        "sanitize_message",
        "select_common_block_size",
    }
)


class MovedName(ImportError):
    """The installed vLLM has a name in none of the known modules."""


def find(name: str) -> Any:
    """Return vLLM's ``name`` from the first of its modules that has it.

    Raises:
        MovedName: listing the modules that were tried.
    """
    for location in LOCATIONS[name]:
        try:
            module = importlib.import_module(location)
        except ModuleNotFoundError as missing:
            # A dependency of vLLM's that is missing is a different error.
            if not location.startswith(missing.name or "?"):
                raise
        else:
            if hasattr(module, name):
                return getattr(module, name)
    tried = ", ".join(LOCATIONS[name])
    raise MovedName(f"vLLM's {name} is in none of {tried}: mend worker/engine/locations.py")


def optional(name: str) -> tuple[Any, ...]:
    """Return one of the ``OPTIONAL`` names, or () if the installed vLLM lacks it."""
    try:
        return (find(name),)
    except MovedName:
        return ()
