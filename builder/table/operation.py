"""Files and long work, security, logs, and sources of settings."""

from table.row import LOGS, OTHER, SECURITY, WORK, Row, rows

WORK_ROWS = rows(
    WORK,
    Row(
        "FILES_PATH",
        "Files path",
        "Directory in which files and batches are stored, in `worker`, and to which callers' paths "
        "are relative; unset, `BASE_PATH`.",
    ),
    Row(
        "FILES_INPUT_PATHS",
        "Directories for callers' inputs",
        "Directories of `FILES_PATH` with files that callers may use for files, batches and "
        "fine-tunes, in addition to `FILES_OUTPUT_PATH`.",
    ),
    Row(
        "FILES_OUTPUT_PATH",
        "Directory for outputs",
        "Directory of `FILES_PATH` for the outputs of LLM Engine's batches.",
    ),
    Row("FILES_MAX_MB", "Maximum file size (MB)", "Maximum megabytes of an uploaded file."),
    Row(
        "FILES_MAX_TOTAL_MB",
        "Space for files (MB)",
        "Maximum megabytes of callers' files, batches, fine-tunes, their adapters and receipts "
        "together; a file or directory counts at least 4 kB. Further ones are refused (507).",
    ),
    Row(
        "FILES_MAX_COUNT",
        "Number of files",
        "Maximum number of callers' files, of batches, and of fine-tunes; further ones are refused "
        "(507).",
    ),
    Row(
        "FILES_RETENTION_DAYS",
        "Retention (days)",
        "Days after which files and ended batches are deleted; `0`: never.",
    ),
    Row(
        "BATCH_API_KEY",
        "Key for batches",
        "API key of the platform, with which the worker sends the jobs that run batches and "
        "fine-tunes; without it, the response contains the job that the caller must send, and work "
        "that a job's time limit or a stopped worker interrupts continues only while a worker is "
        "up, or when somebody asks for it.",
        form=True,
        advanced=True,
    ),
    Row(
        "BATCH_CONCURRENCY",
        "Batch concurrency",
        "Lines of batches that are answered concurrently while there are no other requests; `auto` "
        "keeps the engine full.",
    ),
    Row(
        "BATCH_MAX_REQUESTS", "Lines of a batch", "Maximum number of lines in the input of a batch."
    ),
    Row(
        "EXECUTION_TIMEOUT_S",
        "Execution timeout",
        "The endpoint's execution timeout in seconds, for jobs whose own policy sets none; a batch "
        "stops 30 seconds earlier and continues in another job.",
    ),
    Row(
        "FINE_TUNE",
        "Fine-tuning",
        "Where adapters are trained: `beside` the engine, on its processors or its GPU (the "
        "default on a CPU); in its place (`exclusive`), while requests wait for 30 seconds and "
        "then fail with a retryable 503; or only by workers that are started with `--train` "
        "(`off`, the default on a GPU).",
    ),
    Row(
        "FINE_TUNE_MAX_LENGTH",
        "Maximum length of a row",
        "Maximum tokens of a training row, unless the model's context is shorter; longer rows are "
        "cut at the end.",
    ),
    Row(
        "WANDB_API_KEY",
        "Weights & Biases key",
        "Key for reporting trainings to Weights & Biases, if callers request it and its package is "
        "installed; no other process gets the key.",
    ),
    Row("RUNPOD_ENDPOINT_ID", "Endpoint", "Id of the worker's endpoint; the platform sets it."),
    Row(
        "RUNPOD_ENDPOINT_BASE_URL",
        "Base URL of endpoints",
        "Base URL, before the endpoint's id, to which the worker sends the jobs that continue a "
        "batch.",
    ),
    Row(
        "RUNPOD_VOLUME_ID",
        "Volume",
        "Id of the network volume, which is also its bucket in `s3://` paths; the platform sets "
        "it.",
    ),
    Row(
        "RUNPOD_DC_ID",
        "Data center",
        "Data center of the worker and its network volume, for messages; the platform sets it.",
    ),
)
SECURITY_ROWS = rows(
    SECURITY,
    Row(
        "SERVE_API_KEY",
        "Key for --serve",
        "Key that requests must contain if the worker serves plain HTTP (`--serve`).",
    ),
    Row(
        "DISABLED_ROUTES",
        "Disabled routes",
        "[Routes](reference/openai.md#routes) to disable, separated by commas: groups (`files`, "
        "`batches`, `fine-tunes`; `long-work` for all three), with their jobs; paths; or one "
        "method of a path (`POST /v1/files`). `/chat` reveals the system prompt to every caller, "
        "`/metrics` statistics about the requests of all callers, `/openapi.json` and `/version` "
        "the software of the worker.",
    ),
    Row(
        "TRUST_REQUEST_CHAT_TEMPLATE",
        "Templates of requests",
        "Allow requests to contain their own chat template, which runs in the worker.",
    ),
    Row(
        "ALLOWED_XARGS",
        "Allowed vllm_xargs",
        "Keys that requests may set in `vllm_xargs`, which plugins of vLLM read, separated by "
        "commas; unset, none.",
    ),
    Row(
        "ALLOWED_ORIGINS",
        "Origins for --serve",
        "Origins of web pages that may call `--serve` from a browser, separated by commas "
        "(`https://chat.example.com`); `*`: all; unset: none.",
    ),
    Row(
        "MAX_INPUT_MB",
        "Maximum input (MB)",
        "Maximum megabytes of text, keys and numbers in a job's input; larger inputs are refused "
        "(413).",
    ),
    Row(
        "SERVE_MAX_CONNECTIONS",
        "Connections of --serve",
        "Maximum concurrent connections to each port of `--serve`; another one replaces a "
        "connection without a request, or is refused.",
    ),
    Row(
        "SERVE_TIMEOUT_S",
        "Client timeout of --serve (s)",
        "Seconds after which `--serve` disconnects a client that doesn't send a request head, "
        "sends a body too slowly, or doesn't read its response.",
    ),
)
LOG_ROWS = rows(
    LOGS,
    Row(
        "LOG_FORMAT",
        "Log format",
        "`json`: every line of the log is a JSON object, regardless of its source. Only the "
        "environment can set it.",
    ),
    Row(
        "DISABLE_LOG_REQUESTS",
        "No requests in the log",
        "Don't log requests; `0`: log one line per request.",
        form=True,
    ),
    Row(
        "DISABLE_LOG_STATS",
        "No statistics in the log",
        "Don't log the engine's statistics; `0`: log a line every ten seconds.",
        form=True,
    ),
    Row(
        "ENABLE_LOG_OUTPUTS",
        "Answers in the log",
        "Log every answer; needs `DISABLE_LOG_REQUESTS=0`.",
    ),
    Row(
        "MAX_LOG_LEN",
        "Length of logged prompts",
        "Maximum characters, or token ids, of a prompt in the log; unset, all.",
    ),
    Row(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Receiver of metrics",
        "Address of an OpenTelemetry receiver to which the worker pushes its metrics, without "
        "`/v1/metrics`; unset, it pushes none.",
    ),
    Row(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Headers for the receiver",
        "Headers for the receiver, such as a key: `name=value`, separated by commas.",
    ),
    Row("OTEL_EXPORTER_OTLP_PROTOCOL", "Protocol of the receiver", "Protocol of the receiver."),
    Row(
        "RECEIPTS",
        "Receipts",
        "Write the times, the tokens and the share of the GPU of each request to the volume.",
    ),
    Row(
        "RECEIPTS_RETENTION_DAYS",
        "Retention of receipts (days)",
        "Days after which receipts are deleted; `0`: never.",
    ),
    Row(
        "GPU_PRICE_PER_SECOND",
        "Price of a GPU",
        "Price of one GPU in US dollars per second, for the cost in receipts; `0`: they have none.",
    ),
    Row(
        "RUNPOD_POD_ID",
        "Worker",
        "Id of the worker, for its metrics and receipts; the platform sets it.",
    ),
    Row(
        "LOG_ERROR_STACK",
        "Traces in the log",
        "Without effect: the worker reports and logs errors itself.",
    ),
)
OTHER_ROWS = rows(
    OTHER,
    Row(
        "VLLM_EXTRA_ARGS",
        "Extra arguments",
        "Options in the format of the command line of vLLM's server; they override every other "
        "source.",
        form=True,
        advanced=True,
    ),
    Row(
        "VLLM_CONFIG_FILE",
        "Config file",
        "A YAML or JSON file of settings, which environment variables override; unset, "
        "`/vllm_config.yaml` if it exists.",
    ),
)
