"""Answers of the model, streams, tools, media and adapters."""

from table.row import ANSWERS, LORA, MEDIA, STREAMS, TOOLS, Row, rows

ANSWER_ROWS = rows(
    ANSWERS,
    Row(
        "DEFAULT_MAX_TOKENS",
        "Default max_tokens",
        "`max_tokens` of raw jobs that don't set it.",
        form=True,
    ),
    Row(
        "MAX_OUTPUT_TOKENS",
        "Maximum output tokens",
        "Maximum tokens of each choice, for all requests: one that asks for more, or that doesn't "
        "set a maximum, ends after this number.",
    ),
    Row(
        "SYSTEM_PROMPT",
        "System prompt",
        "System message for conversations without one.",
        form=True,
        advanced=True,
    ),
    Row(
        "GENERATION_CONFIG",
        "Generation config",
        "Source of default sampling parameters: `auto` (the model's), `vllm` (none), or a "
        "directory; the raw path uses them only if this is set.",
    ),
    Row(
        "OVERRIDE_GENERATION_CONFIG",
        "Generation config overrides",
        "Default sampling parameters that override those of `GENERATION_CONFIG`. "
        "`max_new_tokens` in it is more than a default: no request gets more tokens, as with "
        "`MAX_OUTPUT_TOKENS`.",
    ),
    Row("SEED", "Seed", "Seed for requests that don't set one.", form=True, advanced=True),
    Row(
        "CUSTOM_CHAT_TEMPLATE",
        "Chat template",
        "A Jinja template, or the path of a file with one, to use instead of the tokenizer's chat "
        "template.",
        form=True,
    ),
    Row(
        "DEFAULT_CHAT_TEMPLATE_KWARGS",
        "Template variables",
        "Variables of the chat template for requests that don't set them.",
    ),
    Row(
        "CHAT_TEMPLATE_CONTENT_FORMAT",
        "Content in templates",
        "Format in which the template gets a message's content: a `string`, or a list of parts "
        "(`openai`).",
    ),
    Row(
        "OPENAI_RESPONSE_ROLE", "Response role", "Role of the model's messages in chat completions."
    ),
    Row(
        "STRICT_REQUESTS",
        "Strict requests",
        "Refuse requests of the OpenAI API with unknown keys, instead of logging these keys.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_LOGPROBS",
        "Maximum log probabilities",
        "Maximum log probabilities per token that requests may ask for; `-1`: the whole "
        "vocabulary.",
    ),
    Row(
        "RETURN_TOKENS_AS_TOKEN_IDS",
        "Tokens as ids",
        "Write the tokens of log probabilities as ids: `token_id:` and a number.",
    ),
    Row(
        "ENABLE_PROMPT_TOKENS_DETAILS",
        "Cached tokens in usage",
        "Report the prompt tokens from the prefix cache in `usage`.",
    ),
    Row(
        "ENABLE_FORCE_INCLUDE_USAGE",
        "Usage in every stream",
        "End streams with `usage` even if the request doesn't ask for it.",
    ),
)
STREAM_ROWS = rows(
    STREAMS,
    Row(
        "DEFAULT_MIN_BATCH_SIZE", "First chunk", "Tokens in the first chunk of a stream.", form=True
    ),
    Row(
        "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
        "Growth of chunks",
        "Factor by which each chunk is larger than the previous one; at 1 or below, every chunk "
        "has `DEFAULT_BATCH_SIZE` tokens.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_SIZE",
        "Largest chunk",
        "Maximum tokens in a chunk; larger chunks need fewer calls to the platform.",
        form=True,
    ),
    Row(
        "DEFAULT_BATCH_MAX_DELAY_MS",
        "Maximum delay (ms)",
        "Milliseconds after the previous chunk until waiting tokens are sent even if their chunk "
        "is not full; `0`: no limit.",
        form=True,
    ),
    Row(
        "STREAM_INTERVAL",
        "Tokens per output",
        "Tokens in one output of the engine; chunks consist of such outputs.",
    ),
    Row(
        "STREAM_EVENTS",
        "Tokens per event",
        "`chunk`: an event of an OpenAI stream has the tokens of a chunk; `token`: one token, "
        "which takes more CPU time.",
    ),
    Row(
        "RAW_OPENAI_OUTPUT",
        "Raw OpenAI output",
        "Send streams of the OpenAI API as the text of server-sent events, which OpenAI's clients "
        "need; `0`: as lists of decoded events.",
        form=True,
    ),
    Row(
        "STREAM_WHOLE_ANSWERS",
        "Stream whole answers",
        "Post an answer that is not a stream as a chunk, too, for callers that read it from "
        "`/stream`. It costs a second post per answer.",
    ),
)
TOOL_ROWS = rows(
    TOOLS,
    Row(
        "ENABLE_AUTO_TOOL_CHOICE",
        "Tool calls",
        "Let the model decide to call tools; needs `TOOL_CALL_PARSER`.",
        form=True,
    ),
    Row(
        "TOOL_CALL_PARSER",
        "Tool call parser",
        "vLLM's parser for the model's tool calls. `auto` chooses it by the architecture and the "
        "chat template; for unknown families, tools stay off.",
        form=True,
    ),
    Row(
        "REASONING_PARSER",
        "Reasoning parser",
        "vLLM's parser that separates the model's reasoning from its answer. `auto` chooses it in "
        "the same way as the parser of tool calls.",
        form=True,
    ),
    Row(
        "TOOL_PARSER_PLUGIN",
        "Tool parser plugin",
        "Path of a Python file that registers additional tool call parsers.",
    ),
    Row(
        "REASONING_PARSER_PLUGIN",
        "Reasoning parser plugin",
        "Path of a Python file that registers additional reasoning parsers.",
    ),
    Row(
        "EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE",
        "Hide unused tools",
        "Leave tools out of the prompt if the request forbids calling them (`tool_choice` `none`).",
    ),
    Row(
        "STRUCTURED_OUTPUTS_CONFIG",
        "Structured outputs",
        "How answers are constrained to a schema, a grammar or a choice.",
    ),
)
MEDIA_ROWS = rows(
    MEDIA,
    Row(
        "LIMIT_MM_PER_PROMPT",
        "Media in a prompt",
        "Maximum number of images, videos and so on in one prompt.",
        form=True,
        advanced=True,
    ),
    Row(
        "ALLOW_REMOTE_MEDIA",
        "Media from URLs",
        "Fetch media from `http` and `https` URLs on the public internet; `0`: requests must "
        "contain them as `data:` URLs.",
    ),
    Row(
        "ALLOWED_MEDIA_DOMAINS",
        "Media on the web",
        "The only hosts from which media are fetched; unset, the whole public internet.",
    ),
    Row(
        "MEDIA_MAX_MB",
        "Maximum size of media (MB)",
        "Maximum megabytes of one image, video or audio clip; all media of a request may have four "
        "times as many.",
    ),
    Row(
        "MEDIA_MAX_PARTS",
        "Media in a request",
        "Maximum number of images, videos and audio clips in one request.",
    ),
    Row(
        "MEDIA_FETCH_TIMEOUT_S",
        "Media timeout (s)",
        "Seconds within which all media of a request must be fetched and checked.",
    ),
    Row(
        "LANGUAGE_MODEL_ONLY",
        "Text only",
        "Don't use the parts of a multimodal model that process media.",
    ),
    Row(
        "MM_PROCESSOR_KWARGS",
        "Media processor",
        "Additional arguments for the model's media processor.",
    ),
    Row(
        "MM_PROCESSOR_CACHE_GB",
        "Media cache (GiB)",
        "GiB of RAM for a cache of processed media; `0`: none.",
    ),
    Row(
        "VIDEO_PRUNING_RATE",
        "Pruning of videos",
        "Share of a video's tokens, below 1, that is dropped.",
    ),
    Row(
        "ALLOWED_LOCAL_MEDIA_PATH",
        "Media on disk",
        "Directory from which a script (`LLM`) may load media; requests to a worker can't refer to "
        "files.",
    ),
)
LORA_ROWS = rows(
    LORA,
    Row(
        "ENABLE_LORA",
        "LoRA adapters",
        "Serve adapters by name: those on the network volume (`adapters` in `BASE_PATH`) and those "
        "of `LORA_MODULES`.",
        form=True,
        advanced=True,
    ),
    Row(
        "LORA_MODULES",
        "Adapters",
        "Adapters to load at startup, each as `name=path` or as a JSON object.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_LORAS",
        "Adapters per step",
        "Maximum number of different adapters in one step of the engine.",
    ),
    Row(
        "MAX_LORA_RANK",
        "Maximum rank",
        "Maximum rank of adapters; higher ranks take more memory.",
        form=True,
        advanced=True,
    ),
    Row(
        "MAX_CPU_LORAS",
        "Adapters in RAM",
        "Adapters cached in RAM, at least `MAX_LORAS`; unset, the same number.",
    ),
    Row("LORA_DTYPE", "Adapters' data type", "Data type of adapters; `auto` uses the model's."),
    Row(
        "FULLY_SHARDED_LORAS",
        "Split adapters",
        "With tensor parallelism, split adapters across the GPUs completely, not only by half.",
    ),
    Row(
        "ALLOW_UNLOAD_LORA_ADAPTER",
        "Unloading and deletion of adapters",
        "Let callers unload adapters of the volume (`POST /v1/unload_lora_adapter`) until the next "
        "request for them, and delete them permanently (`DELETE /v1/llm/model-endpoints/{name}`), "
        "including those of other callers.",
    ),
)
