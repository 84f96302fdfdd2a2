"""Options of vLLM about requests and answers, adapters, media and speculative decoding."""

from table.row import LORA, MULTIMODAL, OPENAI, SERVERLESS, SPECULATIVE, Row

SERVING_ROWS = (
    Row(
        "ENABLE_AUTO_TOOL_CHOICE",
        OPENAI,
        "Tool calls",
        "Allow the model to decide to call tools; needs `TOOL_CALL_PARSER`.",
        form=True,
    ),
    Row(
        "TOOL_CALL_PARSER",
        OPENAI,
        "Tool call parser",
        "The parser of vLLM for the model's tool calls; `auto`: the parser of its family, by its "
        "architecture and chat template, together with `ENABLE_AUTO_TOOL_CHOICE`, or none.",
        form=True,
    ),
    Row(
        "REASONING_PARSER",
        OPENAI,
        "Reasoning parser",
        "The parser of vLLM that separates the model's reasoning from its answer; `auto`: the "
        "parser of its family, or none.",
        form=True,
    ),
    Row(
        "TOOL_PARSER_PLUGIN",
        OPENAI,
        "Tool parser plugin",
        "Path of a Python file that registers additional tool call parsers.",
    ),
    Row(
        "REASONING_PARSER_PLUGIN",
        OPENAI,
        "Reasoning parser plugin",
        "Path of a Python file that registers additional reasoning parsers.",
    ),
    Row(
        "EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE",
        OPENAI,
        "Hide unused tools",
        "Leave tools out of the prompt if the request forbids calling them (`tool_choice` `none`).",
    ),
    Row(
        "STRUCTURED_OUTPUTS_CONFIG",
        OPENAI,
        "Structured outputs",
        "How answers are constrained to a schema, a grammar or a choice.",
    ),
    Row(
        "RETURN_TOKENS_AS_TOKEN_IDS",
        OPENAI,
        "Tokens as ids",
        "Log probabilities contain tokens as ids: `token_id:` and a number.",
    ),
    Row(
        "ENABLE_PROMPT_TOKENS_DETAILS",
        OPENAI,
        "Cached tokens in usage",
        "`usage` contains the number of prompt tokens from the prefix cache.",
    ),
    Row(
        "ENABLE_FORCE_INCLUDE_USAGE",
        OPENAI,
        "Usage in every stream",
        "Streams end with `usage` even if the request doesn't ask for it.",
    ),
    Row(
        "ENABLE_LOG_OUTPUTS",
        SERVERLESS,
        "Answers in the log",
        "Log every answer; needs `DISABLE_LOG_REQUESTS=0`.",
    ),
    Row(
        "MAX_LOG_LEN",
        SERVERLESS,
        "Length of logged prompts",
        "Maximum number of characters, or token ids, of a prompt in the log; unset, all.",
    ),
    Row(
        "LOG_ERROR_STACK",
        SERVERLESS,
        "Traces in the log",
        "Without effect: the worker reports and logs errors itself.",
    ),
    Row(
        "ENABLE_LORA",
        LORA,
        "LoRA adapters",
        "Serve adapters by name: those on the network volume (`adapters` in `BASE_PATH`) and those"
        " of `LORA_MODULES`.",
        form=True,
        advanced=True,
    ),
    Row(
        "LORA_MODULES",
        LORA,
        "Adapters",
        "Adapters to serve from startup on, each as `name=path` or as a JSON object.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_LORAS",
        LORA,
        "Adapters per step",
        "Maximum number of different adapters in one step of the engine.",
    ),
    Row(
        "MAX_LORA_RANK",
        LORA,
        "Maximum rank",
        "Maximum rank of adapters; higher ranks take more memory.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_CPU_LORAS",
        LORA,
        "Adapters in RAM",
        "Number of adapters that are cached in the machine's memory, at least `MAX_LORAS`; unset, "
        "the same number.",
    ),
    Row(
        "LORA_DTYPE",
        LORA,
        "Adapters' data type",
        "Data type of adapters; `auto` uses the model's.",
    ),
    Row(
        "FULLY_SHARDED_LORAS",
        LORA,
        "Split adapters",
        "With tensor parallelism, split adapters across the GPUs completely, not only by half.",
    ),
    Row(
        "LIMIT_MM_PER_PROMPT",
        MULTIMODAL,
        "Media in a prompt",
        "Maximum number of images, videos and so on in one prompt.",
        form=True,
        advanced=True,
    ),
    Row(
        "LANGUAGE_MODEL_ONLY",
        MULTIMODAL,
        "Text only",
        "Don't use the parts of a multimodal model that process media.",
    ),
    Row(
        "MM_PROCESSOR_KWARGS",
        MULTIMODAL,
        "Media processor",
        "Additional arguments for the model's media processor.",
    ),
    Row(
        "MM_PROCESSOR_CACHE_GB",
        MULTIMODAL,
        "Media cache (GiB)",
        "GiB of the machine's memory for a cache of processed media; `0`: none.",
    ),
    Row(
        "VIDEO_PRUNING_RATE",
        MULTIMODAL,
        "Pruning of videos",
        "Share of a video's tokens, below 1, that is dropped.",
    ),
    Row(
        "ALLOWED_LOCAL_MEDIA_PATH",
        MULTIMODAL,
        "Media on disk",
        "Directory from which a script (`LLM`) may load media; requests to a worker can't refer to"
        " files.",
    ),
    Row(
        "ALLOWED_MEDIA_DOMAINS",
        MULTIMODAL,
        "Media on the web",
        "The only hosts from which media are fetched; unset, the whole public internet.",
    ),
    Row(
        "SPECULATIVE_CONFIG",
        SPECULATIVE,
        "Speculative decoding",
        "How tokens are predicted in advance, so that the model only has to confirm them: a method"
        " and its options.",
        form=True,
        advanced=True,
    ),
)
