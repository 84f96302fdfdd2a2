"""The worker's own settings, its names for options of vLLM, and variables of its libraries."""

from table.row import (
    LIBRARIES,
    LLM,
    MULTIMODAL,
    OPENAI,
    SERVERLESS,
    STREAMING,
    TOKENIZER,
    TUNING,
    VOLUME,
    Row,
)

OWN_ROWS = (
    Row(
        "MODEL_NAME",
        LLM,
        "Model",
        "Required. The model to serve: a repository on the hub (`owner/name`) or a directory.",
        form=True,
    ),
    Row(
        "MODEL_REVISION",
        LLM,
        "Model revision",
        "Branch, tag or commit of the model's repository.",
        form=True,
    ),
    Row(
        "HF_TOKEN",
        LLM,
        "Hugging Face token",
        "Token for private and gated models on the hub; messages and logs never contain it.",
        form=True,
    ),
    Row(
        "BASE_PATH",
        LLM,
        "Base path",
        "Directory of the network volume. Models are downloaded to `huggingface-cache` in it, "
        "unless `HF_HOME` is set; `adapters` in it contains LoRA adapters.",
        form=True,
        advanced=True,
    ),
    Row(
        "EMBEDDING_MODEL_NAME",
        LLM,
        "Embedding model",
        "An embedding model to serve in addition to the model, in a separate engine.",
        form=True,
        advanced=True,
    ),
    Row(
        "TOKENIZER_NAME",
        TOKENIZER,
        "Tokenizer",
        "Repository or directory of a tokenizer to use instead of the model's own.",
        form=True,
        advanced=True,
    ),
    Row(
        "CUSTOM_CHAT_TEMPLATE",
        TOKENIZER,
        "Chat template",
        "A Jinja template, or the path of a file with one, to use instead of the tokenizer's chat "
        "template.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_SIZE",
        STREAMING,
        "Largest chunk",
        "Maximum number of tokens in one chunk of a stream; larger chunks need fewer calls to the "
        "platform.",
        form=True,
    ),
    Row(
        "DEFAULT_MIN_BATCH_SIZE",
        STREAMING,
        "First chunk",
        "Number of tokens in the first chunk of a stream, from which later chunks grow.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
        STREAMING,
        "Growth of chunks",
        "Factor by which each chunk is larger than the previous one, up to the maximum; at 1 or "
        "below, every chunk has `DEFAULT_BATCH_SIZE` tokens.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_MAX_DELAY_MS",
        STREAMING,
        "Maximum delay (ms)",
        "Milliseconds after which waiting tokens are sent even if their chunk is not full; `0`: no"
        " limit.",
        form=True,
    ),
    Row(
        "RAW_OPENAI_OUTPUT",
        OPENAI,
        "Raw OpenAI output",
        "Send streams of the OpenAI path as the text of server-sent events, which OpenAI's clients"
        " need; `0`: as lists of decoded events.",
        form=True,
    ),
    Row(
        "STREAM_WHOLE_ANSWERS",
        OPENAI,
        "Stream whole answers",
        "Post an answer that is not a stream as a chunk, too, for callers that read it from"
        " `/stream`. It costs a second post per answer.",
    ),
    Row(
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
        OPENAI,
        "Served model name",
        "Additional names of the model for requests, separated by commas.",
        form=True,
    ),
    Row(
        "OPENAI_RESPONSE_ROLE",
        OPENAI,
        "Response role",
        "Role of the model's messages in chat completions.",
        form=True,
    ),
    Row(
        "SYSTEM_PROMPT",
        OPENAI,
        "System prompt",
        "System message that is added to every conversation without one.",
        form=True,
        advanced=True,
    ),
    Row(
        "STRICT_REQUESTS",
        OPENAI,
        "Strict requests",
        "Refuse requests of the OpenAI path with unknown keys, instead of logging these keys.",
        form=True,
        advanced=True,
    ),
    Row(
        "DISABLED_ROUTES",
        OPENAI,
        "Disabled routes",
        "Routes to disable, separated by commas: `/chat` reveals the system prompt to every "
        "caller, `/metrics` statistics about the requests of all callers, `/openapi.json` and "
        "`/version` the software of the worker.",
    ),
    Row(
        "ALLOW_UNLOAD_LORA_ADAPTER",
        OPENAI,
        "Unloading and deletion of adapters",
        "Allow callers to unload adapters of the volume (`POST /v1/unload_lora_adapter`), which "
        "are loaded again for the next request, and to delete them permanently (`DELETE "
        "/v1/llm/model-endpoints/{name}`), including those of other callers.",
    ),
    Row(
        "STRUCTURED_COMPILE_S",
        OPENAI,
        "Compile time of structured outputs (s)",
        "Maximum CPU seconds to compile a schema, a regex or a grammar, measured in a trial before"
        " the engine gets it; on one or two cores, 2 if unset; `0`: no limit.",
    ),
    Row(
        "STRUCTURED_MAX_NESTING",
        OPENAI,
        "Nesting of repetitions",
        "Maximum nesting depth of counted repetitions in a regex or a grammar.",
    ),
    Row(
        "STRUCTURED_MAX_REPETITIONS",
        OPENAI,
        "Repetitions",
        "Maximum product of nested counted repetitions: `(a{9}){9}` is 81.",
    ),
    Row(
        "ALLOW_REMOTE_MEDIA",
        MULTIMODAL,
        "Media from URLs",
        "Fetch images, videos and audio from `http` and `https` URLs on the public internet; `0`: "
        "requests must contain them as `data:` URLs.",
    ),
    Row(
        "MEDIA_MAX_MB",
        MULTIMODAL,
        "Maximum size of media (MB)",
        "Maximum megabytes of one image, video or audio clip; all media of a request may have four"
        " times as many.",
    ),
    Row(
        "MEDIA_MAX_PARTS",
        MULTIMODAL,
        "Media in a request",
        "Maximum number of images, videos and audio clips in one request.",
    ),
    Row(
        "MEDIA_FETCH_TIMEOUT_S",
        MULTIMODAL,
        "Media timeout (s)",
        "Seconds within which all media of a request must be fetched and checked.",
    ),
    Row(
        "MAX_CONCURRENCY",
        SERVERLESS,
        "Concurrent jobs",
        "Maximum number of jobs that a worker takes concurrently; the engine runs some of them, "
        "and the others wait in it. `auto`: as many as the engine runs, and at most 32 more.",
        form=True,
    ),
    Row(
        "SHUTDOWN_GRACE_S",
        SERVERLESS,
        "Shutdown grace period (s)",
        "Seconds that running jobs have to end when the platform stops the worker; jobs that don't"
        " end fail as retryable.",
    ),
    Row(
        "ALLOWED_XARGS",
        OPENAI,
        "Allowed vllm_xargs",
        "Keys that requests may set in `vllm_xargs`, which plugins of vLLM read, separated by "
        "commas; unset, none.",
    ),
    Row(
        "MAX_INPUT_MB",
        SERVERLESS,
        "Maximum input (MB)",
        "Maximum megabytes of text, keys and numbers in a job's input; larger inputs are refused "
        "with 413.",
    ),
    Row(
        "MAX_INPUT_VALUES",
        SERVERLESS,
        "Values of an input",
        "Maximum number of values in a job's input, at any depth; token ids don't count.",
    ),
    Row(
        "MAX_INPUT_DEPTH",
        SERVERLESS,
        "Depth of an input",
        "Maximum nesting depth of objects and lists in a job's input.",
    ),
    Row(
        "MAX_INPUT_ITEMS",
        SERVERLESS,
        "Items of a list",
        "Maximum number of items in a list of a job's input, unless they are token ids, and of "
        "keys in an object.",
    ),
    Row(
        "MIN_MODEL_LEN",
        SERVERLESS,
        "Minimum context",
        "Minimum number of tokens of context; startup fails with fewer, if `MAX_MODEL_LEN` is "
        "unset and the model's own context does not fit into the memory.",
    ),
    Row(
        "MAX_ENGINE_RESTARTS",
        SERVERLESS,
        "Engine restarts",
        "Maximum number of restarts of a dead or hanging engine within ten minutes; after that, "
        "the worker exits, so that the platform replaces it.",
    ),
    Row(
        "ANSWER_FAILED_START",
        SERVERLESS,
        "Answer a failed start",
        "A worker that can't start fails the waiting jobs with the reason, if any other worker "
        "would also fail; `0`: it exits immediately, and the jobs stay in the queue.",
    ),
    Row(
        "ENGINE_HANG_S",
        SERVERLESS,
        "Engine hang timeout (s)",
        "Seconds without progress, while requests are running, after which the engine is restarted"
        " (`0`: never); long prompts get more time.",
    ),
    Row(
        "START_STALL_S",
        SERVERLESS,
        "Startup stall timeout (s)",
        "Seconds without progress at startup (no processor time, no bytes read or written, nothing"
        " logged) after which the startup is aborted, and the place in the code where it hangs is "
        "logged (`0`: never).",
    ),
    Row(
        "DEFAULT_MAX_TOKENS",
        SERVERLESS,
        "Default max_tokens",
        "`max_tokens` of raw jobs that don't set it.",
        form=True,
    ),
    Row(
        "DISABLE_LOG_STATS",
        SERVERLESS,
        "No statistics in the log",
        "Don't log the engine's statistics; `0`: log a line every ten seconds.",
        form=True,
    ),
    Row(
        "DISABLE_LOG_REQUESTS",
        SERVERLESS,
        "No requests in the log",
        "Don't log requests; `0`: log one line per request.",
        form=True,
    ),
    Row(
        "LOG_FORMAT",
        SERVERLESS,
        "Log format",
        "`json`: every line of the log is a JSON object, regardless of its source; only the "
        "environment can set it.",
    ),
    Row(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        SERVERLESS,
        "Receiver of metrics",
        "Address of an OpenTelemetry receiver to which the worker pushes its metrics, without "
        "`/v1/metrics`; unset, it pushes none.",
    ),
    Row(
        "OTEL_EXPORTER_OTLP_HEADERS",
        SERVERLESS,
        "Headers for the receiver",
        "Headers of these requests, such as a key: `name=value`, separated by commas.",
    ),
    Row(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        SERVERLESS,
        "Protocol of the receiver",
        "Protocol of these requests.",
    ),
    Row(
        "SERVE_API_KEY",
        SERVERLESS,
        "Key for --serve",
        "Key that requests must contain if the worker serves plain HTTP (`--serve`).",
    ),
    Row(
        "SERVE_MAX_CONNECTIONS",
        SERVERLESS,
        "Connections of --serve",
        "Maximum number of concurrent connections of clients of `--serve`, on each port; another "
        "one replaces a connection without a request, or is refused.",
    ),
    Row(
        "SERVE_TIMEOUT_S",
        SERVERLESS,
        "Client timeout of --serve (s)",
        "Seconds after which `--serve` disconnects a client that doesn't send a request head, "
        "sends a body too slowly, or doesn't read its response.",
    ),
    Row(
        "ALLOWED_ORIGINS",
        SERVERLESS,
        "Origins for --serve",
        "Origins of web pages that may call `--serve` from a browser, separated by commas "
        "(`https://chat.example.com`); `*`: all; unset: none.",
    ),
    Row(
        "COMPILE_CACHE",
        SERVERLESS,
        "Compile cache",
        "Store what vLLM compiles for a model in `compile-cache` on the network volume, so that "
        "later workers don't need to compile it again.",
    ),
    Row(
        "FAST_LOAD",
        SERVERLESS,
        "Fast loader of weights",
        "On GPUs, load weights with the fastest loader that is installed with vLLM and that the "
        "disk allows: `instanttensor`, `fastsafetensors` or `runai_streamer`; if startup fails "
        "with it, vLLM's default loader is tried.",
    ),
    Row(
        "VLLM_CONFIG_FILE",
        SERVERLESS,
        "Config file",
        "A YAML or JSON file of settings, which environment variables override; unset, "
        "`/vllm_config.yaml` if it exists.",
    ),
    Row(
        "VLLM_EXTRA_ARGS",
        SERVERLESS,
        "Extra arguments",
        "Options in the format of the command line of vLLM's server; they override every other "
        "source.",
        form=True,
        advanced=True,
    ),
    Row(
        "EXECUTION_TIMEOUT_S",
        SERVERLESS,
        "Execution timeout",
        "The endpoint's execution timeout in seconds, for jobs whose own policy sets none; a batch"
        " stops 30 seconds earlier and continues in another job.",
    ),
    Row(
        "RUNPOD_ENDPOINT_ID",
        SERVERLESS,
        "Endpoint",
        "Id of the worker's endpoint; the platform sets it.",
    ),
    Row(
        "RUNPOD_ENDPOINT_BASE_URL",
        SERVERLESS,
        "Base URL of endpoints",
        "Base URL, before the endpoint's id, to which the worker sends the jobs that continue a "
        "batch.",
    ),
    Row(
        "FILES_PATH",
        VOLUME,
        "Files path",
        "Directory in which files and batches are stored, in `worker`, and to which callers' paths"
        " are relative; unset, `BASE_PATH`.",
    ),
    Row(
        "FILES_INPUT_PATHS",
        VOLUME,
        "Directories for callers' inputs",
        "Directories of `FILES_PATH` with files that callers may use for files, batches and "
        "fine-tunes, in addition to `FILES_OUTPUT_PATH`.",
    ),
    Row(
        "FILES_OUTPUT_PATH",
        VOLUME,
        "Directory for outputs",
        "Directory of `FILES_PATH` for the outputs of LLM Engine's batches.",
    ),
    Row(
        "FILES_MAX_MB",
        VOLUME,
        "Maximum file size (MB)",
        "Maximum megabytes of an uploaded file.",
    ),
    Row(
        "FILES_MAX_TOTAL_MB",
        VOLUME,
        "Space for files (MB)",
        "Maximum megabytes of all files and outputs of batches together; beyond that, further "
        "ones are refused (507).",
    ),
    Row(
        "FILES_RETENTION_DAYS",
        VOLUME,
        "Retention (days)",
        "Days after which files and ended batches are deleted; `0`: never.",
    ),
    Row(
        "RECEIPTS",
        VOLUME,
        "Receipts",
        "Write the times, the tokens and the share of the GPU of each request to the volume.",
    ),
    Row(
        "RECEIPTS_RETENTION_DAYS",
        VOLUME,
        "Retention of receipts (days)",
        "Days after which receipts are deleted; `0`: never.",
    ),
    Row(
        "GPU_PRICE_PER_SECOND",
        VOLUME,
        "Price of a GPU",
        "Price of one GPU in US dollars per second, for the cost in receipts; `0`: they have none.",
    ),
    Row(
        "BATCH_API_KEY",
        VOLUME,
        "Key for batches",
        "API key of the platform with which the worker sends the jobs that run a batch; without "
        "it, the response contains the job that the caller must send.",
    ),
    Row(
        "BATCH_CONCURRENCY",
        VOLUME,
        "Batch concurrency",
        "Number of lines of batches that are answered concurrently while there are no other "
        "requests; `auto` keeps the engine full.",
    ),
    Row(
        "BATCH_MAX_REQUESTS",
        VOLUME,
        "Lines of a batch",
        "Maximum number of lines in the input of a batch.",
    ),
    Row(
        "FINE_TUNE",
        TUNING,
        "Fine-tuning",
        "Where adapters are trained: `beside` the engine, on its processors or its GPU (the "
        "default on a CPU); in its place (`exclusive`), while requests wait for 30 seconds and "
        "then fail with a retryable 503; or only by workers that are started with `--train` "
        "(`off`, the default on a GPU).",
    ),
    Row(
        "FINE_TUNE_MAX_LENGTH",
        TUNING,
        "Maximum length of a row",
        "Maximum number of tokens of a training row, unless the model's context is shorter; longer"
        " rows are cut at the end.",
    ),
    Row(
        "WANDB_API_KEY",
        TUNING,
        "Weights & Biases key",
        "Key for reporting trainings to Weights & Biases, if callers request it and its package is"
        " installed; no other process gets the key.",
    ),
    Row(
        "RUNPOD_POD_ID",
        SERVERLESS,
        "Worker",
        "Id of the worker, for its metrics and receipts; the platform sets it.",
    ),
    Row(
        "RUNPOD_VOLUME_ID",
        VOLUME,
        "Volume",
        "Id of the network volume, which is also its bucket in `s3://` paths; the platform sets "
        "it.",
    ),
    Row(
        "RUNPOD_DC_ID",
        VOLUME,
        "Data center",
        "Data center of the worker and its network volume, for messages; the platform sets it.",
    ),
)


def _variable(name: str, meaning: str) -> Row:
    return Row(name, LIBRARIES, name, meaning)


LIBRARY_ROWS = (
    _variable(
        "CUDA_VISIBLE_DEVICES",
        "Indices of the GPUs that the worker may use, separated by commas.",
    ),
    _variable("HF_ENDPOINT", "URL of another hub, such as a mirror."),
    _variable(
        "HF_HOME",
        "Directory of Hugging Face's libraries, with downloads in `hub`; unset, it is in "
        "`BASE_PATH` if that exists or is set.",
    ),
    _variable("HF_HUB_CACHE", "Directory of the downloads, instead of `hub` in `HF_HOME`."),
    _variable("HUGGINGFACE_HUB_CACHE", "The former name of `HF_HUB_CACHE`."),
    _variable(
        "HF_HUB_DISABLE_XET",
        "`1`: downloads by libraries don't use the hub's Xet; the worker's own downloads never do.",
    ),
    _variable(
        "HF_HUB_OFFLINE",
        "`1`: don't contact the hub; the model must be on disk. `0`: libraries may contact it even"
        " if everything has been found.",
    ),
    _variable(
        "HF_XET_HIGH_PERFORMANCE",
        "`1`: downloads by libraries through Xet use the full network bandwidth and all cores; the"
        " worker's own downloads never use Xet.",
    ),
    _variable("TRANSFORMERS_OFFLINE", "The same as `HF_HUB_OFFLINE`, for transformers."),
    _variable(
        "OMP_NUM_THREADS",
        "Threads for computations without a GPU; unset, one core is left free.",
    ),
    _variable(
        "OTEL_RESOURCE_ATTRIBUTES",
        "Attributes of the worker in the metrics that it pushes: `name=value`, with commas.",
    ),
    _variable(
        "OTEL_SERVICE_NAME",
        "Name of the service in the metrics that the worker pushes; `llm-worker` unless set.",
    ),
    _variable(
        "RUNPOD_INIT_TIMEOUT",
        "Seconds that the platform allows for startup before it considers the worker unhealthy.",
    ),
    _variable("RUNPOD_LOG_LEVEL", "Log level of the SDK; `INFO` unless set."),
    _variable(
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "`1`: `MAX_MODEL_LEN` may exceed the maximum of the model's configuration.",
    ),
    _variable(
        "VLLM_CPU_KVCACHE_SPACE",
        "GiB of memory for the KV cache without a GPU; 1 unless set.",
    ),
    _variable(
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "Seconds within which the engine must be ready, including loading; 600 unless set.",
    ),
    _variable(
        "VLLM_MAX_IMAGE_PIXELS",
        "Maximum number of pixels of an image, 40,000,000 unless set; all images and frames of a "
        "request may have eight times as many.",
    ),
    _variable("VLLM_LOGGING_LEVEL", "Log level of vLLM; `INFO` unless set."),
    _variable(
        "VLLM_USE_DEEP_GEMM",
        "`0`: FP8 models don't use DeepGEMM's kernels, which are compiled on first use.",
    ),
)
