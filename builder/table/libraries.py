"""Variables of the worker's libraries."""

from table.row import LIBRARIES, Row


def _variable(name: str, meaning: str) -> Row:
    return Row(name, LIBRARIES, name, meaning)


LIBRARY_ROWS = (
    _variable(
        "CUDA_VISIBLE_DEVICES",
        "Indices of the GPUs that the worker may use, separated by commas.",
    ),
    _variable(
        "HF_ENDPOINT",
        "URL of another hub, such as a mirror.",
    ),
    _variable(
        "HF_HOME",
        "Directory of Hugging Face's libraries, with downloads in `hub`; unset, it is in "
        "`BASE_PATH` if that exists or is set.",
    ),
    _variable(
        "HF_HUB_CACHE",
        "Directory of the downloads, instead of `hub` in `HF_HOME`.",
    ),
    _variable(
        "HUGGINGFACE_HUB_CACHE",
        "The former name of `HF_HUB_CACHE`.",
    ),
    _variable(
        "HF_HUB_OFFLINE",
        "`1`: don't contact the hub; the model must be on disk. `0`: libraries may contact it even "
        "if everything has been found.",
    ),
    _variable(
        "TRANSFORMERS_OFFLINE",
        "The same as `HF_HUB_OFFLINE`, for transformers.",
    ),
    _variable(
        "HF_HUB_DISABLE_XET",
        "`1`: libraries download without the hub's Xet; the worker's own downloads never use it.",
    ),
    _variable(
        "HF_XET_HIGH_PERFORMANCE",
        "`1`: downloads of libraries through Xet use the full bandwidth and all cores.",
    ),
    _variable(
        "OMP_NUM_THREADS",
        "Threads for computations without a GPU; unset, one core is left free.",
    ),
    _variable(
        "OTEL_RESOURCE_ATTRIBUTES",
        "Attributes of the worker in the metrics that it pushes: `name=value`, separated by "
        "commas.",
    ),
    _variable(
        "OTEL_SERVICE_NAME",
        "Name of the service in these metrics; `llm-worker` unless set.",
    ),
    _variable(
        "RUNPOD_INIT_TIMEOUT",
        "Seconds that the platform allows for startup before it considers the worker unhealthy.",
    ),
    _variable(
        "RUNPOD_LOG_LEVEL",
        "Log level of the SDK; `INFO` unless set.",
    ),
    _variable(
        "VLLM_LOGGING_LEVEL",
        "Log level of vLLM; `INFO` unless set.",
    ),
    _variable(
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "Seconds within which the engine must be ready, including loading; 600 unless set.",
    ),
    _variable(
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "`1`: `MAX_MODEL_LEN` may exceed the maximum of the model's configuration.",
    ),
    _variable(
        "VLLM_CPU_KVCACHE_SPACE",
        "GiB for the KV cache without a GPU; 1 unless set.",
    ),
    _variable(
        "VLLM_MAX_IMAGE_PIXELS",
        "Maximum pixels of an image, 40,000,000 unless set; all images and frames of a request may "
        "have eight times as many.",
    ),
    _variable(
        "VLLM_USE_DEEP_GEMM",
        "`0`: FP8 models don't use DeepGEMM's kernels, which are compiled on first use.",
    ),
)
