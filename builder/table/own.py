"""The worker's own settings, its names for options of vLLM, and what libraries below it read."""

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
        "Required: the model to serve, a repository on the hub (`owner/name`) or a directory.",
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
        "Token for private and gated models on the hub; messages and logs never show it.",
        form=True,
    ),
    Row(
        "BASE_PATH",
        LLM,
        "Base path",
        "Directory of the network volume: models are downloaded to `huggingface-cache` in it, "
        "unless `HF_HOME` says otherwise; `adapters` in it holds LoRA adapters.",
        form=True,
        advanced=True,
    ),
    Row(
        "EMBEDDING_MODEL_NAME",
        LLM,
        "Embedding model",
        "An embedding model that is served together with the model, in an engine of its own.",
        form=True,
        advanced=True,
    ),
    Row(
        "TOKENIZER_NAME",
        TOKENIZER,
        "Tokenizer",
        "Repository or directory of a tokenizer other than the model's own.",
        form=True,
        advanced=True,
    ),
    Row(
        "CUSTOM_CHAT_TEMPLATE",
        TOKENIZER,
        "Chat template",
        "A Jinja template, or the path of a file with one, that renders conversations in place of "
        "the tokenizer's.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_SIZE",
        STREAMING,
        "Largest chunk",
        "Most tokens that one chunk of a stream holds; larger chunks need fewer calls to the "
        "platform.",
        form=True,
    ),
    Row(
        "DEFAULT_MIN_BATCH_SIZE",
        STREAMING,
        "First chunk",
        "Tokens in a stream's first chunk, from which the next ones grow.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
        STREAMING,
        "Growth of chunks",
        "How many times as large each chunk is as the one before, up to the largest; at 1 or "
        "below every chunk is as large as `DEFAULT_BATCH_SIZE` says.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_MAX_DELAY_MS",
        STREAMING,
        "Longest wait (ms)",
        "Milliseconds after which a waiting token is sent though its chunk is not full; `0`: no "
        "bound.",
        form=True,
    ),
    Row(
        "RAW_OPENAI_OUTPUT",
        OPENAI,
        "Raw OpenAI output",
        "Streams of the OpenAI path leave as text of server-sent events, which OpenAI's clients "
        "need; `0`: as lists of decoded events.",
        form=True,
    ),
    Row(
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
        OPENAI,
        "Served model name",
        "Further names by which requests may ask for the model, separated by commas.",
        form=True,
    ),
    Row(
        "OPENAI_RESPONSE_ROLE",
        OPENAI,
        "Response role",
        "Role of the messages that the model answers with in chat completions.",
        form=True,
    ),
    Row(
        "SYSTEM_PROMPT",
        OPENAI,
        "System prompt",
        "Text of a system message that opens every conversation without one.",
        form=True,
        advanced=True,
    ),
    Row(
        "STRICT_REQUESTS",
        OPENAI,
        "Strict requests",
        "Requests of the OpenAI path with unknown keys are refused, instead of a line in the log.",
        form=True,
        advanced=True,
    ),
    Row(
        "DISABLED_ROUTES",
        OPENAI,
        "Disabled routes",
        "Routes that are not answered, separated by commas: `/chat` tells every caller the system "
        "prompt, `/metrics` what all callers together have asked, `/openapi.json` and `/version` "
        "what the worker is.",
    ),
    Row(
        "ALLOW_UNLOAD_LORA_ADAPTER",
        OPENAI,
        "Callers unload and delete adapters",
        "Callers may unload the adapters of the volume (`POST /v1/unload_lora_adapter`), which "
        "then are loaded anew for the next request, and delete them for good "
        "(`DELETE /v1/llm/model-endpoints/{name}`): also those of others.",
    ),
    Row(
        "STRUCTURED_COMPILE_S",
        OPENAI,
        "Time to compile a structured output",
        "Seconds of one core that a schema, a regex or a grammar may take to compile, which is "
        "tried out before the engine gets it; on one or two cores 2 if unset; `0`: no limit.",
    ),
    Row(
        "STRUCTURED_MAX_NESTING",
        OPENAI,
        "Counts inside each other",
        "How many counted repetitions of a regex or a grammar may stand inside each other.",
    ),
    Row(
        "STRUCTURED_MAX_REPETITIONS",
        OPENAI,
        "Repetitions",
        "What counted repetitions inside each other may multiply to: `(a{9}){9}` is 81.",
    ),
    Row(
        "ALLOW_REMOTE_MEDIA",
        MULTIMODAL,
        "Media from URLs",
        "Images, videos and audio are fetched from `http` and `https` URLs on the public internet; "
        "`0`: requests hold them, as `data:` URLs.",
    ),
    Row(
        "MEDIA_MAX_MB",
        MULTIMODAL,
        "Largest medium (MB)",
        "Megabytes of one image, video or sound; all of a request may have four times as many.",
    ),
    Row(
        "MEDIA_MAX_PARTS",
        MULTIMODAL,
        "Media in a request",
        "Most images, videos and sounds in one request.",
    ),
    Row(
        "MEDIA_FETCH_TIMEOUT_S",
        MULTIMODAL,
        "Seconds for media",
        "Seconds in which all media of a request have to be fetched and checked.",
    ),
    Row(
        "MAX_CONCURRENCY",
        SERVERLESS,
        "Jobs at once",
        "Jobs that a worker takes at once, of which the engine runs some and the others wait in "
        "it; `auto`: as many as it runs, and a quarter more.",
        form=True,
    ),
    Row(
        "SHUTDOWN_GRACE_S",
        SERVERLESS,
        "Seconds to finish",
        "Seconds that running jobs have to end when the platform stops the worker; those that "
        "don't are failed as retryable.",
    ),
    Row(
        "ALLOWED_XARGS",
        OPENAI,
        "Allowed vllm_xargs",
        "Keys that requests may have in `vllm_xargs`, which plugins of vLLM read, separated by "
        "commas; unset, none.",
    ),
    Row(
        "MAX_INPUT_MB",
        SERVERLESS,
        "Largest input (MB)",
        "Megabytes of text, keys and numbers that a job's input may have; one with more is refused "
        "with 413.",
    ),
    Row(
        "MAX_INPUT_VALUES",
        SERVERLESS,
        "Values of an input",
        "Values that a job's input may have, however deep inside it; token ids are not counted.",
    ),
    Row(
        "MAX_INPUT_DEPTH",
        SERVERLESS,
        "Depth of an input",
        "Objects and lists that may stand inside one another in a job's input.",
    ),
    Row(
        "MAX_INPUT_ITEMS",
        SERVERLESS,
        "Items of a list",
        "Items that a list in a job's input may have, unless it is of token ids, and keys that an "
        "object may have.",
    ),
    Row(
        "MIN_MODEL_LEN",
        SERVERLESS,
        "Least context",
        "Tokens of context below which a start fails, where `MAX_MODEL_LEN` is unset and the "
        "memory holds less than the model's own.",
    ),
    Row(
        "MAX_ENGINE_RESTARTS",
        SERVERLESS,
        "Engine restarts",
        "How often within ten minutes an engine that died or hung is started again; then the "
        "worker exits, so that the platform replaces it.",
    ),
    Row(
        "ANSWER_FAILED_START",
        SERVERLESS,
        "Answer a failed start",
        "A worker that can't start fails the jobs that wait with the reason, where any other "
        "worker would fail likewise; `0`: it exits at once, and they stay in the queue.",
    ),
    Row(
        "ENGINE_HANG_S",
        SERVERLESS,
        "Seconds of a hang",
        "Seconds after which an engine that does not move, though requests run, is ended and "
        "started again (`0`: never); long prompts are given more.",
    ),
    Row(
        "START_STALL_S",
        SERVERLESS,
        "Seconds of a start that stands still",
        "Seconds after which a start that does not move (no processor time, no bytes read or "
        "written, nothing logged) is ended, and where in the code it hangs is logged (`0`: never).",
    ),
    Row(
        "DEFAULT_MAX_TOKENS",
        SERVERLESS,
        "Default max_tokens",
        "`max_tokens` of jobs in the raw form that name none.",
        form=True,
    ),
    Row(
        "DISABLE_LOG_STATS",
        SERVERLESS,
        "No statistics in the log",
        "The log has no statistics of the engine; `0`: a line every ten seconds.",
        form=True,
    ),
    Row(
        "DISABLE_LOG_REQUESTS",
        SERVERLESS,
        "No requests in the log",
        "The log has no line for each request; `0`: one line each.",
        form=True,
    ),
    Row(
        "LOG_FORMAT",
        SERVERLESS,
        "Log format",
        "`json`: every line of the log is a JSON object, whoever prints it; only the environment "
        "can set it.",
    ),
    Row(
        "SERVE_API_KEY",
        SERVERLESS,
        "Key for --serve",
        "Key that requests must carry where the worker serves plain HTTP (`--serve`).",
    ),
    Row(
        "SERVE_MAX_CONNECTIONS",
        SERVERLESS,
        "Connections of --serve",
        "Connections that clients of `--serve` may have at once, on each port; a further one takes "
        "the place of one without a request, or is refused.",
    ),
    Row(
        "SERVE_TIMEOUT_S",
        SERVERLESS,
        "Seconds for clients of --serve",
        "Seconds after which `--serve` gives up a client that brings no request's head, sends a "
        "body too slowly, or does not read its answer.",
    ),
    Row(
        "ALLOWED_ORIGINS",
        SERVERLESS,
        "Origins for --serve",
        "Origins of web pages that may call `--serve` from a browser, with commas between "
        "(`https://chat.example.com`); `*`: all; unset: none.",
    ),
    Row(
        "COMPILE_CACHE",
        SERVERLESS,
        "Compile cache",
        "What vLLM compiles for a model is kept in `compile-cache` on the network volume, and "
        "workers that start later need not compile it again.",
    ),
    Row(
        "FAST_LOAD",
        SERVERLESS,
        "Fast loader of weights",
        "On GPUs, weights are read by the fastest loader that vLLM has installed and the disk "
        "allows: `instanttensor`, `fastsafetensors` or `runai_streamer`; if a start fails with it, "
        "vLLM's own is tried.",
    ),
    Row(
        "VLLM_CONFIG_FILE",
        SERVERLESS,
        "Config file",
        "A YAML or JSON file of settings, which variables of the environment override; unset, "
        "`/vllm_config.yaml` is read where it exists.",
    ),
    Row(
        "VLLM_EXTRA_ARGS",
        SERVERLESS,
        "Extra arguments",
        "Options as on the command line of vLLM's server; they win over every other source.",
        form=True,
        advanced=True,
    ),
    Row(
        "EXECUTION_TIMEOUT_S",
        SERVERLESS,
        "Execution timeout",
        "Seconds that the endpoint gives a job, where the job's own policy names none: a batch "
        "stops 30 seconds earlier, and goes on in another job.",
    ),
    Row(
        "RUNPOD_ENDPOINT_ID",
        SERVERLESS,
        "Endpoint",
        "Id of the endpoint that the worker belongs to; the platform sets it.",
    ),
    Row(
        "RUNPOD_ENDPOINT_BASE_URL",
        SERVERLESS,
        "Endpoints' address",
        "Where the worker sends the jobs that continue a batch, in front of the endpoint's id.",
    ),
    Row(
        "FILES_PATH",
        VOLUME,
        "Files path",
        "Directory in which files and batches are kept, in `worker`, and which callers' paths "
        "are relative to; unset, `BASE_PATH`.",
    ),
    Row(
        "FILES_INPUT_PATHS",
        VOLUME,
        "Directories that callers read",
        "Directories of `FILES_PATH` in which callers may name files, for files, batches and "
        "fine-tunes; they may also name what is in `FILES_OUTPUT_PATH`.",
    ),
    Row(
        "FILES_OUTPUT_PATH",
        VOLUME,
        "Directory that callers write to",
        "Directory of `FILES_PATH` in which the outputs of LLM Engine's batches are written.",
    ),
    Row(
        "FILES_MAX_MB",
        VOLUME,
        "Largest file",
        "Megabytes that a file may have which is uploaded.",
    ),
    Row(
        "FILES_MAX_TOTAL_MB",
        VOLUME,
        "Space for files",
        "Megabytes that all files and outputs of batches may have together: beyond them a new one "
        "is refused (507).",
    ),
    Row(
        "FILES_RETENTION_DAYS",
        VOLUME,
        "Retention",
        "Days after which files and ended batches are removed; 0 keeps them.",
    ),
    Row(
        "BATCH_API_KEY",
        VOLUME,
        "Key for batches",
        "Key of the platform's with which the worker sends the jobs that run a batch; without it "
        "the answer says what to send.",
    ),
    Row(
        "BATCH_CONCURRENCY",
        VOLUME,
        "Batch concurrency",
        "How many lines of batches are answered at once while nobody else asks; `auto` keeps the "
        "engine full.",
    ),
    Row(
        "BATCH_MAX_REQUESTS",
        VOLUME,
        "Lines of a batch",
        "How many lines the input of a batch may have.",
    ),
    Row(
        "FINE_TUNE",
        TUNING,
        "Fine-tuning",
        "Where adapters are trained: `beside` the engine, on its processors or its GPU (unset, so "
        "on a CPU); in its place (`exclusive`), while requests wait for 30 seconds and then get a "
        "retryable 503; or not by workers with an engine (`off`, so on a GPU), only by those that "
        "are started with `--train`.",
    ),
    Row(
        "FINE_TUNE_MAX_LENGTH",
        TUNING,
        "Tokens of a row",
        "Most tokens of a row that an adapter is trained on, if the model's context is not "
        "shorter; what is longer is cut at its end.",
    ),
    Row(
        "WANDB_API_KEY",
        TUNING,
        "Weights & Biases key",
        "Key with which trainings are told to Weights & Biases, where callers ask for that and its "
        "package is installed; no other process has it.",
    ),
    Row(
        "RUNPOD_VOLUME_ID",
        VOLUME,
        "Volume",
        "Id of the network volume, and its bucket in `s3://` paths; the platform sets it.",
    ),
)


def _variable(name: str, meaning: str) -> Row:
    return Row(name, LIBRARIES, name, meaning)


LIBRARY_ROWS = (
    _variable(
        "CUDA_VISIBLE_DEVICES",
        "Numbers of the GPUs that the worker may use, separated by commas.",
    ),
    _variable("HF_ENDPOINT", "Address of another hub, such as a mirror."),
    _variable(
        "HF_HOME",
        "Directory of Hugging Face's libraries, which downloads go to `hub` in; unset, it is in "
        "`BASE_PATH`, where that exists or is set.",
    ),
    _variable("HF_HUB_CACHE", "Directory of the downloads themselves, in place of that `hub`."),
    _variable("HUGGINGFACE_HUB_CACHE", "The former name of `HF_HUB_CACHE`."),
    _variable(
        "HF_HUB_DISABLE_XET",
        "`1`: what libraries download themselves comes without the hub's Xet, as what the worker "
        "downloads always does.",
    ),
    _variable(
        "HF_HUB_OFFLINE",
        "`1`: the hub is not asked, the model must be on disk; `0`: libraries may ask it also when "
        "everything has been found.",
    ),
    _variable(
        "HF_XET_HIGH_PERFORMANCE",
        "`1`: what libraries download themselves through Xet uses all of the network and the "
        "cores; what the worker downloads never comes through Xet.",
    ),
    _variable("TRANSFORMERS_OFFLINE", "The same as `HF_HUB_OFFLINE`, for transformers."),
    _variable(
        "OMP_NUM_THREADS",
        "Threads that compute without a GPU; unset, one core is left free.",
    ),
    _variable(
        "RUNPOD_INIT_TIMEOUT",
        "Seconds that the platform grants a start before it takes the worker for unhealthy.",
    ),
    _variable("RUNPOD_LOG_LEVEL", "Level of the SDK's log, `INFO` unless set."),
    _variable(
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "`1`: `MAX_MODEL_LEN` may exceed what the model's configuration allows.",
    ),
    _variable(
        "VLLM_CPU_KVCACHE_SPACE",
        "GiB of memory for the KV cache without a GPU, 1 unless set.",
    ),
    _variable(
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "Seconds within which the engine must be ready, loading included, 600 unless set.",
    ),
    _variable(
        "VLLM_MAX_IMAGE_PIXELS",
        "Most pixels of an image, 40,000,000 unless set; all images and frames of a request may "
        "have eight times as many.",
    ),
    _variable("VLLM_LOGGING_LEVEL", "Level of vLLM's log, `INFO` unless set."),
    _variable(
        "VLLM_USE_DEEP_GEMM",
        "`0`: FP8 models do without DeepGEMM's kernels, which are compiled when first used.",
    ),
)
