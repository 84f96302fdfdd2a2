"""Example values of settings, for messages and for the documentation."""

from worker.settings.names import canonical_name

# Examples for settings for which the generic example of their type would be misleading.
EXAMPLES = {
    "MODEL_NAME": "Qwen/Qwen3-0.6B",
    "MODEL_REVISION": "main",
    "EMBEDDING_MODEL_NAME": "BAAI/bge-small-en-v1.5",
    "TOKENIZER_NAME": "Qwen/Qwen3-0.6B",
    "CUSTOM_CHAT_TEMPLATE": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "my-model",
    "FILES_PATH": "/runpod-volume",
    "DISABLED_ROUTES": "/chat,/metrics",
    "ALLOWED_XARGS": "my_plugin_switch",
    "SYSTEM_PROMPT": "You are a helpful assistant.",
    "VLLM_CONFIG_FILE": "/runpod-volume/settings.yaml",
    "VLLM_EXTRA_ARGS": "--max-model-len 4096 --enable-lora",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "OMP_NUM_THREADS": "4",
    "RUNPOD_INIT_TIMEOUT": "1200",
    "RUNPOD_LOG_LEVEL": "WARN",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "MAX_MODEL_LEN": "16k",
    "QUANTIZATION": "awq",
    "KV_CACHE_DTYPE": "fp8",
    "LOAD_FORMAT": "safetensors",
    "SEED": "42",
    "DOWNLOAD_DIR": "/models",
    "FILES_INPUT_PATHS": "inbox,uploads",
    "FILES_OUTPUT_PATH": "out",
    "GENERATION_CONFIG": "vllm",
    "OVERRIDE_GENERATION_CONFIG": '{"temperature": 0.7}',
    "HF_OVERRIDES": '{"architectures": ["LlamaForCausalLM"]}',
    "POOLER_CONFIG": '{"pooling_type": "MEAN"}',
    "MODEL_LOADER_EXTRA_CONFIG": '{"enable_multithread_load": true}',
    "TOKENIZER_REVISION": "main",
    "RENDERER_NUM_WORKERS": "4",
    "DEFAULT_CHAT_TEMPLATE_KWARGS": '{"enable_thinking": false}',
    "GPU_MEMORY_UTILIZATION": "0.9",
    "TENSOR_PARALLEL_SIZE": "2",
    "DISTRIBUTED_EXECUTOR_BACKEND": "mp",
    "MAX_NUM_SEQS": "256",
    "MAX_NUM_BATCHED_TOKENS": "8192",
    "MAX_NUM_QUEUED_REQS": "500",
    "BLOCK_SIZE": "16",
    "CPU_OFFLOAD_GB": "10",
    "KV_CACHE_MEMORY_BYTES": "4G",
    "KV_OFFLOADING_SIZE": "16",
    "MAX_PARALLEL_LOADING_WORKERS": "2",
    "NUMA_BIND_NODES": "0,1",
    "NUM_GPU_BLOCKS_OVERRIDE": "1024",
    "ATTENTION_BACKEND": "FLASH_ATTN",
    "OPTIMIZATION_LEVEL": "1",
    "COMPILATION_CONFIG": '{"cudagraph_mode": "PIECEWISE"}',
    "CUDAGRAPH_CAPTURE_SIZES": "1,2,4,8",
    "STREAM_INTERVAL": "4",
    "TOOL_CALL_PARSER": "hermes",
    "REASONING_PARSER": "qwen3",
    "STRUCTURED_OUTPUTS_CONFIG": '{"backend": "xgrammar"}',
    "MAX_LOG_LEN": "100",
    "LORA_MODULES": '{"name": "sql", "path": "org/sql-lora"}',
    "MAX_LORAS": "4",
    "MAX_LORA_RANK": "64",
    "MAX_CPU_LORAS": "8",
    "LIMIT_MM_PER_PROMPT": "image=1,video=0",
    "MM_PROCESSOR_KWARGS": '{"max_pixels": 1003520}',
    "MM_PROCESSOR_CACHE_GB": "0",
    "VIDEO_PRUNING_RATE": "0.5",
    "ALLOWED_LOCAL_MEDIA_PATH": "/runpod-volume/media",
    "ALLOWED_MEDIA_DOMAINS": "example.com,images.example.com",
    "SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 4, '
    '"prompt_lookup_max": 4}',
}


def example_value(name: str) -> str | None:
    """Return the example value of a setting, by any of its names.

    Returns None if the setting has only the generic example of its type.
    """
    return EXAMPLES.get(canonical_name(name))
