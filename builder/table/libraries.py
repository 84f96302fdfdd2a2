"""Variables of the worker's libraries."""

from table.row import LIBRARIES, Row, rows

_MEANINGS = {
    "CUDA_VISIBLE_DEVICES": "Indices of the GPUs that the worker may use, separated by commas.",
    "HF_ENDPOINT": "URL of another hub, such as a mirror.",
    "HF_HOME": (
        "Directory of Hugging Face's libraries, with downloads in `hub`; unset, it is in "
        "`BASE_PATH` if that exists or is set."
    ),
    "HF_HUB_CACHE": "Directory of the downloads, instead of `hub` in `HF_HOME`.",
    "HUGGINGFACE_HUB_CACHE": "The former name of `HF_HUB_CACHE`.",
    "HF_HUB_OFFLINE": (
        "`1`: don't contact the hub; the model must be on disk. `0`: libraries may contact it even "
        "if everything has been found."
    ),
    "TRANSFORMERS_OFFLINE": "The same as `HF_HUB_OFFLINE`, for transformers.",
    "HF_HUB_DISABLE_XET": (
        "`1`: libraries download without the hub's Xet; the worker's own downloads never use it."
    ),
    "HF_XET_HIGH_PERFORMANCE": (
        "`1`: downloads of libraries through Xet use the full bandwidth and all cores."
    ),
    "OMP_NUM_THREADS": "Threads for computations without a GPU; unset, one core is left free.",
    "OTEL_RESOURCE_ATTRIBUTES": (
        "Attributes of the worker in the metrics that it pushes: `name=value`, separated by commas."
    ),
    "OTEL_SERVICE_NAME": "Name of the service in these metrics; `llm-worker` unless set.",
    "RUNPOD_INIT_TIMEOUT": (
        "Seconds that the platform allows for startup before it considers the worker unhealthy."
    ),
    "RUNPOD_LOG_LEVEL": "Log level of the SDK; `INFO` unless set.",
    "VLLM_LOGGING_LEVEL": "Log level of vLLM; `INFO` unless set.",
    "VLLM_ENGINE_READY_TIMEOUT_S": (
        "Seconds within which the engine must be ready, including loading; 600 unless set."
    ),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": (
        "`1`: `MAX_MODEL_LEN` may exceed the maximum of the model's configuration."
    ),
    "VLLM_CPU_KVCACHE_SPACE": "GiB for the KV cache without a GPU; 1 unless set.",
    "VLLM_MAX_IMAGE_PIXELS": (
        "Maximum pixels of an image, 40,000,000 unless set; all images and frames of a request may "
        "have eight times as many."
    ),
    "VLLM_USE_DEEP_GEMM": (
        "`0`: FP8 models don't use DeepGEMM's kernels, which are compiled on first use."
    ),
}
LIBRARY_ROWS = rows(LIBRARIES, *(Row(name, name, meaning) for name, meaning in _MEANINGS.items()))
