"""Options of vLLM about requests and answers, adapters, media and speculation."""

from table.row import LORA, MULTIMODAL, OPENAI, SERVERLESS, SPECULATIVE, Row

SERVING_ROWS = (
    Row(
        "ENABLE_AUTO_TOOL_CHOICE",
        OPENAI,
        "Tool calls",
        "The model may call tools on its own account; it needs `TOOL_CALL_PARSER`.",
        form=True,
    ),
    Row(
        "TOOL_CALL_PARSER",
        OPENAI,
        "Tool call parser",
        "Which of vLLM's parsers reads the model's tool calls; `auto`: the one of its "
        "family, by its architecture and chat template, and `ENABLE_AUTO_TOOL_CHOICE` with it, "
        "or none.",
        form=True,
    ),
    Row(
        "REASONING_PARSER",
        OPENAI,
        "Reasoning parser",
        "Which of vLLM's parsers separates the model's reasoning from its answer; `auto`: the one "
        "of its family, or none.",
        form=True,
    ),
    Row(
        "TOOL_PARSER_PLUGIN",
        OPENAI,
        "Tool parser plugin",
        "Path of a Python file that registers further tool call parsers.",
    ),
    Row(
        "REASONING_PARSER_PLUGIN",
        OPENAI,
        "Reasoning parser plugin",
        "Path of a Python file that registers further reasoning parsers.",
    ),
    Row(
        "EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE",
        OPENAI,
        "Hide unused tools",
        "The prompt leaves out tools that a request forbids to call (`tool_choice` `none`).",
    ),
    Row(
        "STRUCTURED_OUTPUTS_CONFIG",
        OPENAI,
        "Structured outputs",
        "How answers are held to a schema, a grammar or a choice.",
    ),
    Row(
        "RETURN_TOKENS_AS_TOKEN_IDS",
        OPENAI,
        "Tokens as ids",
        "Log probabilities name tokens by id, as `token_id:` and a number.",
    ),
    Row(
        "ENABLE_PROMPT_TOKENS_DETAILS",
        OPENAI,
        "Cached tokens in usage",
        "`usage` says how many of the prompt's tokens came from the prefix cache.",
    ),
    Row(
        "ENABLE_FORCE_INCLUDE_USAGE",
        OPENAI,
        "Usage in every stream",
        "Streams end with `usage` though the request does not ask for it.",
    ),
    Row(
        "ENABLE_LOG_OUTPUTS",
        SERVERLESS,
        "Answers in the log",
        "The log holds every answer; it needs `DISABLE_LOG_REQUESTS=0`.",
    ),
    Row(
        "MAX_LOG_LEN",
        SERVERLESS,
        "Length of logged prompts",
        "Most characters, or token ids, of a prompt in the log; unset, all.",
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
        "Adapters on the network volume (`adapters` in `BASE_PATH`) and of `LORA_MODULES` can be "
        "asked for by name.",
        form=True,
        advanced=True,
    ),
    Row(
        "LORA_MODULES",
        LORA,
        "Adapters",
        "Adapters that are served from the start: `name=path` each, or JSON objects.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_LORAS",
        LORA,
        "Adapters a step",
        "Adapters that one step of the engine can use side by side.",
    ),
    Row(
        "MAX_LORA_RANK",
        LORA,
        "Highest rank",
        "Highest rank that an adapter may have; higher ones take more memory.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_CPU_LORAS",
        LORA,
        "Adapters in RAM",
        "Adapters that are kept in the machine's memory, at least `MAX_LORAS`; unset, as many.",
    ),
    Row(
        "LORA_DTYPE",
        LORA,
        "Adapters' data type",
        "Precision of adapters; `auto` is the model's.",
    ),
    Row(
        "FULLY_SHARDED_LORAS",
        LORA,
        "Split adapters",
        "With tensor parallelism adapters are split across the GPUs wholly, not by half.",
    ),
    Row(
        "LIMIT_MM_PER_PROMPT",
        MULTIMODAL,
        "Media in a prompt",
        "Most images, videos and so on in one prompt.",
        form=True,
        advanced=True,
    ),
    Row(
        "LANGUAGE_MODEL_ONLY",
        MULTIMODAL,
        "Text only",
        "The parts of a multimodal model that read media are not used.",
    ),
    Row(
        "MM_PROCESSOR_KWARGS",
        MULTIMODAL,
        "Media processor",
        "Further arguments of the model's processor of media.",
    ),
    Row(
        "MM_PROCESSOR_CACHE_GB",
        MULTIMODAL,
        "Media cache (GiB)",
        "GiB of the machine's memory in which processed media are kept; `0`: none.",
    ),
    Row(
        "VIDEO_PRUNING_RATE",
        MULTIMODAL,
        "Pruning of videos",
        "Share of a video's tokens, below 1, that is left out.",
    ),
    Row(
        "ALLOWED_LOCAL_MEDIA_PATH",
        MULTIMODAL,
        "Media on disk",
        "Directory from which a script (`LLM`) may name media; requests to a worker name no files.",
    ),
    Row(
        "ALLOWED_MEDIA_DOMAINS",
        MULTIMODAL,
        "Media on the web",
        "The only hosts from which media are fetched; unset, all of the public internet.",
    ),
    Row(
        "SPECULATIVE_CONFIG",
        SPECULATIVE,
        "Speculative decoding",
        "How tokens are guessed ahead, which the model then only confirms: a method, and what it "
        "needs.",
        form=True,
        advanced=True,
    ),
)
