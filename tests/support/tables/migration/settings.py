"""Settings of ``worker-vllm``, each with a documented value, or one of its documented type."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from support.tables.migration import Verdict

BOOLEAN = "true"

# Values, other than BOOLEAN, of settings that have the same meaning here.
VALUES = {
    "MODEL_NAME": "org/other",
    "MODEL_REVISION": "v2",
    "REVISION": "v2",
    "LOAD_FORMAT": "safetensors",
    "QUANTIZATION": "awq",
    "DTYPE": "bfloat16",
    "KV_CACHE_DTYPE": "fp8_e5m2",
    "SEED": "7",
    "HF_TOKEN": "hf_x",
    "HUGGING_FACE_HUB_TOKEN": "hf_x",
    "DOWNLOAD_DIR": "/models",
    "BASE_PATH": "/data",
    "MODEL_LOADER_EXTRA_CONFIG": '{"a": 1}',
    "CODE_REVISION": "v2",
    "IGNORE_PATTERNS": "*.bin",
    "CONFIG_FORMAT": "hf",
    "HF_CONFIG_PATH": "org/config",
    "HF_OVERRIDES": '{"rope_theta": 10000}',
    "MODEL_IMPL": "transformers",
    "RUNNER": "pooling",
    "CONVERT": "embed",
    "GENERATION_CONFIG": "vllm",
    "OVERRIDE_GENERATION_CONFIG": '{"max_new_tokens": 512}',
    "SAFETENSORS_LOAD_STRATEGY": "eager",
    "PT_LOAD_MAP_LOCATION": "cuda",
    "USE_TQDM_ON_LOAD": "false",
    "TOKENIZER": "org/words",
    "TOKENIZER_NAME": "org/words",
    "TOKENIZER_REVISION": "v3",
    "TOKENIZER_MODE": "mistral",
    "CUSTOM_CHAT_TEMPLATE": "{{ messages }}",
    "CHAT_TEMPLATE": "{{ messages }}",
    "CHAT_TEMPLATE_CONTENT_FORMAT": "openai",
    "MAX_MODEL_LEN": "4096",
    "BLOCK_SIZE": "32",
    "KV_CACHE_MEMORY_BYTES": "4G",
    "CPU_OFFLOAD_GB": "10",
    "KV_OFFLOADING_BACKEND": "lmcache",
    "KV_OFFLOADING_SIZE": "16",
    "KV_TRANSFER_CONFIG": '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}',
    "KV_EVENTS_CONFIG": '{"enable_kv_cache_events": true}',
    "NUM_GPU_BLOCKS_OVERRIDE": "64",
    "PREFIX_CACHING_HASH_ALGO": "sha256_cbor",
    "MAMBA_CACHE_DTYPE": "float32",
    "MAMBA_SSM_CACHE_DTYPE": "float32",
    "ATTENTION_BACKEND": "FLASHINFER",
    "VLLM_ATTENTION_BACKEND": "FLASH_ATTN",
    "COMPILATION_CONFIG": '{"cudagraph_mode": "PIECEWISE"}',
    "ADDITIONAL_CONFIG": '{"a": 1}',
    "PIPELINE_PARALLEL_SIZE": "2",
    "DATA_PARALLEL_SIZE": "2",
    "DATA_PARALLEL_SIZE_LOCAL": "1",
    "DATA_PARALLEL_BACKEND": "ray",
    "DECODE_CONTEXT_PARALLEL_SIZE": "2",
    "DISTRIBUTED_EXECUTOR_BACKEND": "ray",
    "EPLB_CONFIG": '{"window_size": 100}',
    "EXPERT_PLACEMENT_STRATEGY": "round_robin",
    "DBO_DECODE_TOKEN_THRESHOLD": "16",
    "DBO_PREFILL_TOKEN_THRESHOLD": "256",
    "WORKER_CLS": "a.Worker",
    "WORKER_EXTENSION_CLS": "a.Extension",
    "MAX_NUM_BATCHED_TOKENS": "8192",
    "LONG_PREFILL_TOKEN_THRESHOLD": "64",
    "SCHEDULING_POLICY": "priority",
    "SCHEDULER_CLS": "a.Scheduler",
    "STREAM_INTERVAL": "4",
    "ENABLE_PREFIX_CACHING": "false",
    "ENABLE_CHUNKED_PREFILL": "false",
    "ASYNC_SCHEDULING": "false",
    "TOOL_CALL_PARSER": "hermes",
    # Any file that is there.
    "TOOL_PARSER_PLUGIN": __file__,
    "TOOL_SERVER": "demo",
    "REASONING_PARSER": "deepseek_r1",
    "STRUCTURED_OUTPUTS_CONFIG": '{"backend": "guidance"}',
    "LOGITS_PROCESSORS": "a.Processor",
    "LOGPROBS_MODE": "raw_logits",
    "MAX_LOGPROBS": "5",
    "OPENAI_RESPONSE_ROLE": "bot",
    "RESPONSE_ROLE": "bot",
    "POOLER_CONFIG": '{"pooling_type": "MEAN"}',
    "IO_PROCESSOR_PLUGIN": "plugin",
    "RAW_OPENAI_OUTPUT": "0",
    "MAX_LORAS": "2",
    "MAX_LORA_RANK": "32",
    "MAX_CPU_LORAS": "8",
    "LORA_DTYPE": "float16",
    "DEFAULT_MM_LORAS": '{"image": "org/a"}',
    "LIMIT_MM_PER_PROMPT": "image=1,video=0",
    "MM_ENCODER_TP_MODE": "data",
    "MM_PROCESSOR_CACHE_GB": "0",
    "MM_PROCESSOR_CACHE_TYPE": "shm",
    "MM_PROCESSOR_KWARGS": '{"max_pixels": 1003520}',
    "MM_SHM_CACHE_MAX_OBJECT_SIZE_MB": "64",
    "MEDIA_IO_KWARGS": '{"video": {"num_frames": 40}}',
    "VIDEO_PRUNING_RATE": "0.5",
    "ALLOWED_LOCAL_MEDIA_PATH": "/runpod-volume/media",
    "ALLOWED_MEDIA_DOMAINS": "example.com",
    "SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 4}',
    "SPECULATIVE_METHOD": "eagle3",
    "SPECULATIVE_MODEL": "org/draft",
    "SPECULATIVE_MODEL_REVISION": "v4",
    "SPECULATIVE_QUANTIZATION": "awq",
    "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "2",
    "SPECULATIVE_MAX_MODEL_LEN": "512",
    "NUM_SPECULATIVE_TOKENS": "5",
    "NGRAM_PROMPT_LOOKUP_MAX": "4",
    "NGRAM_PROMPT_LOOKUP_MIN": "2",
    "DISABLE_LOG_REQUESTS": "0",
    "DISABLE_LOGGING_REQUEST": "0",
    "MAX_LOG_LEN": "100",
    "LOG_CONFIG_FILE": "/log.json",
    "OTLP_TRACES_ENDPOINT": "http://localhost:4317",
}

# Names of settings with the same meaning here, by what they are about.
WORKS = {
    "the model": """
        MODEL_NAME MODEL_REVISION REVISION QUANTIZATION DTYPE LOAD_FORMAT TRUST_REMOTE_CODE SEED
        HF_TOKEN HUGGING_FACE_HUB_TOKEN BASE_PATH DOWNLOAD_DIR MODEL_LOADER_EXTRA_CONFIG
        CODE_REVISION IGNORE_PATTERNS CONFIG_FORMAT HF_CONFIG_PATH HF_OVERRIDES MODEL_IMPL RUNNER
        CONVERT GENERATION_CONFIG OVERRIDE_GENERATION_CONFIG SAFETENSORS_LOAD_STRATEGY
        PT_LOAD_MAP_LOCATION USE_TQDM_ON_LOAD
    """,
    "the tokenizer": """
        TOKENIZER_NAME TOKENIZER TOKENIZER_REVISION TOKENIZER_MODE SKIP_TOKENIZER_INIT
        CUSTOM_CHAT_TEMPLATE CHAT_TEMPLATE CHAT_TEMPLATE_CONTENT_FORMAT TRUST_REQUEST_CHAT_TEMPLATE
    """,
    "memory": """
        MAX_MODEL_LEN BLOCK_SIZE KV_CACHE_DTYPE KV_CACHE_MEMORY_BYTES CPU_OFFLOAD_GB
        KV_OFFLOADING_BACKEND KV_OFFLOADING_SIZE KV_TRANSFER_CONFIG KV_EVENTS_CONFIG
        NUM_GPU_BLOCKS_OVERRIDE PREFIX_CACHING_HASH_ALGO MAMBA_CACHE_DTYPE MAMBA_SSM_CACHE_DTYPE
        DISABLE_HYBRID_KV_CACHE_MANAGER KV_SHARING_FAST_PREFILL ENABLE_SLEEP_MODE
    """,
    "the GPUs": """
        PIPELINE_PARALLEL_SIZE DATA_PARALLEL_SIZE DATA_PARALLEL_SIZE_LOCAL DATA_PARALLEL_BACKEND
        DECODE_CONTEXT_PARALLEL_SIZE DISTRIBUTED_EXECUTOR_BACKEND RAY_WORKERS_USE_NSIGHT
        DISABLE_CUSTOM_ALL_REDUCE ENABLE_EXPERT_PARALLEL ENABLE_EPLB EPLB_CONFIG
        EXPERT_PLACEMENT_STRATEGY ENABLE_DBO DBO_DECODE_TOKEN_THRESHOLD DBO_PREFILL_TOKEN_THRESHOLD
        WORKER_CLS WORKER_EXTENSION_CLS
    """,
    "how it computes": """
        ENFORCE_EAGER COMPILATION_CONFIG ADDITIONAL_CONFIG ATTENTION_BACKEND VLLM_ATTENTION_BACKEND
        DISABLE_SLIDING_WINDOW MAX_NUM_BATCHED_TOKENS LONG_PREFILL_TOKEN_THRESHOLD ASYNC_SCHEDULING
        SCHEDULING_POLICY SCHEDULER_CLS STREAM_INTERVAL
    """,
    "what it answers": """
        ENABLE_AUTO_TOOL_CHOICE TOOL_CALL_PARSER TOOL_PARSER_PLUGIN TOOL_SERVER REASONING_PARSER
        EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE STRUCTURED_OUTPUTS_CONFIG LOGITS_PROCESSORS
        LOGPROBS_MODE MAX_LOGPROBS RETURN_TOKENS_AS_TOKEN_IDS ENABLE_PROMPT_TOKENS_DETAILS
        ENABLE_FORCE_INCLUDE_USAGE ENABLE_PROMPT_EMBEDS ENABLE_REQUEST_ID_HEADERS
        ENABLE_SERVER_LOAD_TRACKING ENABLE_TOKENIZER_INFO_ENDPOINT OPENAI_RESPONSE_ROLE
        RESPONSE_ROLE RAW_OPENAI_OUTPUT POOLER_CONFIG IO_PROCESSOR_PLUGIN
    """,
    "images and videos": """
        LIMIT_MM_PER_PROMPT MM_ENCODER_TP_MODE MM_PROCESSOR_CACHE_GB MM_PROCESSOR_CACHE_TYPE
        MM_PROCESSOR_KWARGS MM_SHM_CACHE_MAX_OBJECT_SIZE_MB MEDIA_IO_KWARGS VIDEO_PRUNING_RATE
        ALLOWED_LOCAL_MEDIA_PATH ALLOWED_MEDIA_DOMAINS DISABLE_CHUNKED_MM_INPUT SKIP_MM_PROFILING
        INTERLEAVE_MM_STRINGS
    """,
    "LoRA": """
        ENABLE_LORA MAX_LORAS MAX_LORA_RANK MAX_CPU_LORAS LORA_DTYPE FULLY_SHARDED_LORAS
        DEFAULT_MM_LORAS
    """,
    "speculation": """
        SPECULATIVE_CONFIG SPECULATIVE_METHOD SPECULATIVE_MODEL SPECULATIVE_MODEL_REVISION
        SPECULATIVE_QUANTIZATION SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE SPECULATIVE_MAX_MODEL_LEN
        SPECULATIVE_ENFORCE_EAGER NUM_SPECULATIVE_TOKENS NGRAM_PROMPT_LOOKUP_MAX
        NGRAM_PROMPT_LOOKUP_MIN
    """,
    "the log": """
        ENABLE_LOG_REQUESTS DISABLE_LOG_REQUESTS DISABLE_LOGGING_REQUEST ENABLE_LOG_OUTPUTS
        MAX_LOG_LEN LOG_CONFIG_FILE OTLP_TRACES_ENDPOINT
    """,
}
# Read by libraries, which find them in the environment here, too.
FOR_LIBRARIES = {
    "HF_HOME": "/cache",
    "HUGGINGFACE_HUB_CACHE": "/cache/hub",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "0",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "VLLM_USE_DEEP_GEMM": "0",
}
# Have no effect here without a word, as in the release of August 2026.
PASSED_OVER = {"HOST": "0.0.0.0", "CONFIG": "/a.yaml", "HELP": "1", "VLLM_API_KEY": "x"}

# Removed from vLLM, or without a meaning inside the worker: the start's log says so.
IDLE = """
    API_KEY API_SERVER_COUNT ALLOW_CREDENTIALS CALCULATE_KV_SCALES CUDA_GRAPH_SIZES
    DATA_PARALLEL_ADDRESS DATA_PARALLEL_HYBRID_LB DATA_PARALLEL_RANK DATA_PARALLEL_RPC_PORT
    DATA_PARALLEL_START_RANK DEVICE DISABLE_CASCADE_ATTN DISABLE_FASTAPI_DOCS
    DISABLE_FRONTEND_MULTIPROCESSING DISABLE_LOGPROBS_DURING_SPEC_DECODING
    DISABLE_MM_PREPROCESSOR_CACHE DISABLE_UVICORN_ACCESS_LOG ENABLE_LORA_BIAS
    ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL ENABLE_PROMPT_ADAPTER ENABLE_SSL_REFRESH
    EPLB_LOG_BALANCEDNESS EPLB_STEP_INTERVAL EPLB_WINDOW_SIZE GUIDED_DECODING_BACKEND
    GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES GUIDED_DECODING_DISABLE_ANY_WHITESPACE
    GUIDED_DECODING_DISABLE_FALLBACK H11_MAX_HEADER_COUNT H11_MAX_INCOMPLETE_EVENT_SIZE
    LOGITS_PROCESSOR_PATTERN LOG_ERROR_STACK LONG_LORA_SCALING_FACTORS LORA_EXTRA_VOCAB_SIZE
    MAX_CONTEXT_LEN_TO_CAPTURE MAX_LONG_PARTIAL_PREFILLS MAX_MODEL_LENGTH MAX_NUM_PARTIAL_PREFILLS
    MAX_PARALLEL_LOADING_WORKERS MAX_PROMPT_ADAPTERS MAX_PROMPT_ADAPTER_TOKEN MAX_SEQ_LEN_TO_CAPTURE
    MIDDLEWARE NUM_LOOKAHEAD_SLOTS NUM_REDUNDANT_EXPERTS NUM_SCHEDULER_STEPS
    OVERRIDE_ATTENTION_DTYPE OVERRIDE_POOLER_CONFIG PREEMPTION_CHECK_PERIOD PREEMPTION_CPU_CAPACITY
    PREEMPTION_MODE QLORA_ADAPTER_NAME_OR_PATH QUANTIZATION_PARAM_PATH REQUEST_TIMEOUT ROOT_PATH
    ROPE_SCALING ROPE_THETA SCHEDULER_DELAY_FACTOR SHOW_HIDDEN_METRICS_FOR_VERSION
    SPECULATIVE_DISABLE_BY_BATCH_SIZE SPEC_DECODING_ACCEPTANCE_METHOD SSL_CA_CERTS SSL_CERTFILE
    SSL_CERT_REQS SSL_KEYFILE SWAP_SPACE TASK TENSORIZE TENSORIZER_NUM_GPUS TESTING_DOWNLOAD
    TOKENIZER_POOL_EXTRA_CONFIG TOKENIZER_POOL_SIZE TOKENIZER_POOL_TYPE TRANSFORMERS_VERSION
    TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD UDS
    USE_V2_BLOCK_MANAGER VLLM_BASE_URL VLLM_NIGHTLY VLLM_STARTUP_TIMEOUT WORKER_CUDA_VERSION
    WORKER_USE_RAY
"""
IDLE_VALUES = {
    "ALLOWED_HEADERS": '["*"]',
    "ALLOWED_METHODS": '["*"]',
    "COLLECT_DETAILED_TRACES": "all",
    "UVICORN_LOG_LEVEL": "warning",
}

# Documented values that stop the start.
REFUSED = (
    ("QUANTIZATION", "squeezellm"),
    ("QUANTIZATION", "bitsandbytes"),
    ("LOAD_FORMAT", "bitsandbytes"),
    ("TOKENIZER_MODE", "slow"),
    ("VLLM_USE_DEEP_GEMM", "true"),
)

# Settings without which another has no effect, or is refused.
NEEDED: dict[str, dict[str, str]] = {
    "ENABLE_AUTO_TOOL_CHOICE": {"TOOL_CALL_PARSER": "hermes"},
    "TOOL_CALL_PARSER": {"ENABLE_AUTO_TOOL_CHOICE": "true", "TOOL_CALL_PARSER": "mistral"},
    "ENABLE_LOG_OUTPUTS": {"ENABLE_LOG_REQUESTS": "true"},
    "MAX_LOG_LEN": {"ENABLE_LOG_REQUESTS": "true"},
    "DATA_PARALLEL_SIZE": {"TENSOR_PARALLEL_SIZE": "1"},
    "DATA_PARALLEL_SIZE_LOCAL": {"TENSOR_PARALLEL_SIZE": "1", "DATA_PARALLEL_SIZE": "2"},
    **{name: {"ENABLE_LORA": "true"} for name in WORKS["LoRA"].split()[1:-1]},
    **{
        name: {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "3"}
        for name in WORKS["speculation"].split()[1:]
    },
}


class Different(NamedTuple):
    """A setting that is accepted, and what differs.

    Attributes:
        differs: for the page.
        given: what is set.
        effects: paths in the start that was read, with the values that ``differs`` says.
    """

    name: str
    differs: str
    given: Mapping[str, str]
    effects: Mapping[str, Any]


def _unset(name: str, differs: str, path: str, value: Any) -> Different:
    return Different(name, differs, {}, {path: value})


DIFFERENT = (
    _unset(
        "MAX_CONCURRENCY",
        "Unset, it is 300, as in 1.0; it was 30 in later releases. `auto` fits it to the engine",
        "settings.max_concurrency",
        300,
    ),
    _unset(
        "GPU_MEMORY_UTILIZATION",
        "Unset, it is 0.95, as in the in-process releases and in the form of RunPod's hub; since "
        "July 2026 it is vLLM's own there",
        "vllm.gpu_memory_utilization",
        0.95,
    ),
    _unset(
        "TENSOR_PARALLEL_SIZE",
        "Unset, the model is split across all GPUs that it fits, as in the in-process releases;"
        " since July 2026 it runs on one there",
        "vllm.tensor_parallel_size",
        4,
    ),
    _unset(
        "MAX_NUM_SEQS",
        "Unset, vLLM chooses it for the GPU; documented there as 256",
        "vllm.max_num_seqs",
        None,
    ),
    _unset(
        "ENABLE_PREFIX_CACHING",
        "Unset, vLLM decides, and it is on for models that write; documented there as off",
        "vllm.enable_prefix_caching",
        None,
    ),
    _unset(
        "ENABLE_CHUNKED_PREFILL",
        "Unset, vLLM decides, and it is on for models that write; documented there as off",
        "vllm.enable_chunked_prefill",
        None,
    ),
    _unset(
        "DISABLE_LOG_STATS",
        "Unset, it is 1, as in 1.0; later releases logged vLLM's figures. `/metrics` has them"
        " either way",
        "settings.disable_log_stats",
        True,
    ),
    Different(
        "MAX_MODEL_LEN=auto",
        "The same as unset: the model's context, or what the memory holds",
        {"MAX_MODEL_LEN": "auto"},
        {"vllm.max_model_len": -1},
    ),
    Different(
        "MAX_NUM_BATCHED_TOKENS=0",
        "Counts as unset, as since July 2026",
        {"MAX_NUM_BATCHED_TOKENS": "0"},
        {"vllm.max_num_batched_tokens": None},
    ),
    *(
        Different(
            name,
            "The same sizes; but a chunk goes out smaller when a token has waited for 100 ms."
            " `DEFAULT_BATCH_MAX_DELAY_MS=0` keeps the sizes exact. Gone there since July 2026",
            {name: value},
            {f"settings.{path}": effect, "settings.default_batch_max_delay_ms": 100},
        )
        for name, value, path, effect in (
            ("DEFAULT_BATCH_SIZE", "20", "default_batch_size", 20),
            ("DEFAULT_MIN_BATCH_SIZE", "2", "default_min_batch_size", 2),
            (
                "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
                "1.5",
                "default_batch_size_growth_factor",
                1.5,
            ),
            ("MIN_BATCH_SIZE", "2", "default_min_batch_size", 2),
            ("BATCH_SIZE_GROWTH_FACTOR", "1.5", "default_batch_size_growth_factor", 1.5),
        )
    ),
    *(
        Different(
            name,
            "The model's own name is served, too; several names are separated by commas",
            {name: "mine"},
            {"vllm.served_model_name": ["mine", "org/model"]},
        )
        for name in ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "SERVED_MODEL_NAME")
    ),
    Different(
        "MODEL",
        "The same as `MODEL_NAME`; reserved there since July 2026",
        {"MODEL_NAME": "", "MODEL": "org/other"},
        {"vllm.model": "org/other"},
    ),
    Different(
        "LORA_MODULES",
        "Adapters are loaded before the first job, and a mistake stops the start. A list needs"
        " `ENABLE_LORA=1`, and `[]` counts as unset",
        {
            "ENABLE_LORA": "1",
            "LORA_MODULES": '[{"name": "a", "path": "org/a", "base_model_name": "org/model"}]',
        },
        {"vllm.lora_modules.0.path": "org/a"},
    ),
    Different(
        "LORA_MODULES=[]", "Counts as unset", {"LORA_MODULES": "[]"}, {"vllm.lora_modules": None}
    ),
    Different(
        "VLLM_CONFIG_FILE",
        "Unset, `/vllm_config.yaml` is read if it is there, as in the in-process releases. A key"
        " that is no option is refused",
        {"VLLM_CONFIG_FILE": "<config>"},
        {"vllm.seed": 7},
    ),
    Different(
        "VLLM_EXTRA_ARGS",
        "Wins over all, too; each option in it is checked like a variable",
        {"VLLM_EXTRA_ARGS": "--override-generation-config '{\"max_new_tokens\": 512}' --seed 7"},
        {"vllm.seed": 7, "vllm.override_generation_config": {"max_new_tokens": 512}},
    ),
    Different(
        "VLLM_PORT",
        "A variable of vLLM's own; there is no server beside the worker whose port it could be",
        {"VLLM_PORT": "8000"},
        {},
    ),
    Different(
        "ALLOWED_ORIGINS",
        "For [`--serve`](reference/http.md) alone, and separated by commas instead of a JSON list",
        {"ALLOWED_ORIGINS": "https://a.example,https://b.example"},
        {"settings.allowed_origins": ("https://a.example", "https://b.example")},
    ),
    Different("PORT", "The port of [`--serve`](reference/http.md)", {"PORT": "8000"}, {}),
)


class BuildArgument(NamedTuple):
    """An argument of ``docker build``; with a default, where it has another one here."""

    name: str
    verdict: Verdict
    differs: str = ""
    default: str | None = None


BUILD = (
    *(
        BuildArgument(name, Verdict.WORKS)
        for name in """
            MODEL_NAME MODEL_REVISION TOKENIZER_NAME TOKENIZER_REVISION QUANTIZATION
        """.split()
    ),
    BuildArgument(
        "BASE_PATH",
        Verdict.DIFFERS,
        "Unset, it is `/models`, where no network volume hides the model",
        "/models",
    ),
    BuildArgument(
        "VLLM_VERSION",
        Verdict.DIFFERS,
        "Written without the `v`: `0.32.0`. The worker is tested with 0.29 to 0.32",
        "0.32.0",
    ),
    BuildArgument(
        "WORKER_CUDA_VERSION", Verdict.REFUSED, "The build ends, and says which image to choose"
    ),
    BuildArgument(
        "VLLM_NIGHTLY", Verdict.IDLE, "Docker says that nobody reads it; name a base image instead"
    ),
)

# Where its images keep the hub's cache, below BASE_PATH.
WEIGHTS = "huggingface-cache/hub"

# What the hub's form writes into each new endpoint, whether or not it was touched.
FORM = {
    "TOKENIZER_MODE": "auto",
    "SKIP_TOKENIZER_INIT": "false",
    "TRUST_REMOTE_CODE": "false",
    "DTYPE": "auto",
    "KV_CACHE_DTYPE": "auto",
    "DISTRIBUTED_EXECUTOR_BACKEND": "mp",
    "RAY_WORKERS_USE_NSIGHT": "false",
    "PIPELINE_PARALLEL_SIZE": "1",
    "TENSOR_PARALLEL_SIZE": "1",
    "MAX_PARALLEL_LOADING_WORKERS": "1",
    "ENABLE_PREFIX_CACHING": "false",
    "DISABLE_SLIDING_WINDOW": "false",
    "SEED": "0",
    "MAX_NUM_SEQS": "256",
    "MAX_LOGPROBS": "20",
    "DISABLE_LOG_STATS": "false",
    "QUANTIZATION": "None",
    "ENABLE_LORA": "false",
    "MAX_LORAS": "1",
    "MAX_LORA_RANK": "16",
    "LORA_DTYPE": "auto",
    "FULLY_SHARDED_LORAS": "false",
    "DEVICE": "auto",
    "SCHEDULER_DELAY_FACTOR": "0",
    "SPECULATIVE_METHOD": "",
    "ENABLE_LOG_REQUESTS": "false",
    "GPU_MEMORY_UTILIZATION": "0.95",
    "BLOCK_SIZE": "16",
    "DISABLE_CUSTOM_ALL_REDUCE": "false",
    "DEFAULT_BATCH_SIZE": "50",
    "DEFAULT_MIN_BATCH_SIZE": "1",
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "3",
    "RAW_OPENAI_OUTPUT": "true",
    "OPENAI_RESPONSE_ROLE": "assistant",
    "MAX_CONCURRENCY": "30",
    "ENABLE_EXPERT_PARALLEL": "false",
    "BASE_PATH": "/runpod-volume",
    "ENABLE_AUTO_TOOL_CHOICE": "false",
    "TOOL_CALL_PARSER": "",
    "REASONING_PARSER": "",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "VLLM_USE_DEEP_GEMM": "0",
}
FORMS = {
    "in process": FORM
    | {"ENABLE_CHUNKED_PREFILL": "false", "SWAP_SPACE": "4", "ENFORCE_EAGER": "true"},
    "vllm serve": FORM
    | {"ENABLE_CHUNKED_PREFILL": "true", "MAX_MODEL_LEN": "auto", "ENFORCE_EAGER": "false"},
}
# Of these, without effect here.
FORMS_IDLE = {
    "DEVICE",
    "FULLY_SHARDED_LORAS",
    "LORA_DTYPE",
    "MAX_LORAS",
    "MAX_LORA_RANK",
    "MAX_PARALLEL_LOADING_WORKERS",
    "SCHEDULER_DELAY_FACTOR",
    "SWAP_SPACE",
}


class Sent(NamedTuple):
    """A setting as it is tried, and what is expected of it."""

    name: str
    value: str
    verdict: Verdict
    # Of libraries and of nobody: what the worker reads does not change.
    unread: bool = False


def sent() -> list[Sent]:
    """Return all settings with one value each, but for those of ``DIFFERENT``."""
    works = [name for names in WORKS.values() for name in names.split()]
    idle = dict.fromkeys(IDLE.split(), "1") | {"TASK": "embed"} | IDLE_VALUES
    unread = FOR_LIBRARIES | PASSED_OVER
    return [
        *(Sent(name, value, Verdict.REFUSED) for name, value in REFUSED),
        *(Sent(name, value, Verdict.IDLE) for name, value in sorted(idle.items())),
        *(Sent(name, VALUES.get(name, BOOLEAN), Verdict.WORKS) for name in works),
        *(Sent(name, value, Verdict.WORKS, unread=True) for name, value in unread.items()),
    ]
