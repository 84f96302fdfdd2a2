"""Options of vLLM about the model, its weights and its tokenizer."""

from table.row import LLM, TOKENIZER, Row

MODEL_ROWS = (
    Row(
        "MAX_MODEL_LEN",
        LLM,
        "Context length",
        "Maximum number of tokens of a request, prompt and answer together; unset, the model's own"
        " maximum, or as many as fit into the memory.",
        form=True,
    ),
    Row(
        "DTYPE",
        LLM,
        "Data type",
        "Data type of weights and activations; `auto` uses the checkpoint's.",
        form=True,
    ),
    Row(
        "QUANTIZATION",
        LLM,
        "Quantization",
        "Quantization method of the weights; unset, the method in the model's configuration.",
        form=True,
    ),
    Row(
        "KV_CACHE_DTYPE",
        LLM,
        "KV cache data type",
        "Data type of the KV cache; `fp8` stores twice as many tokens as a 16-bit type.",
        form=True,
    ),
    Row(
        "LOAD_FORMAT",
        LLM,
        "Load format",
        "Format of the weights; `auto` prefers safetensors.",
        form=True,
        advanced=True,
    ),
    Row(
        "TRUST_REMOTE_CODE",
        LLM,
        "Trust remote code",
        "Allow code from the model's repository to run in the worker; some new architectures need "
        "it.",
        form=True,
    ),
    Row(
        "SEED",
        LLM,
        "Seed",
        "Seed for requests that don't set one.",
        form=True,
        advanced=True,
    ),
    Row(
        "DOWNLOAD_DIR",
        LLM,
        "Download directory",
        "Directory for downloaded weights, instead of Hugging Face's cache.",
    ),
    Row(
        "GENERATION_CONFIG",
        LLM,
        "Generation config",
        "Source of default sampling parameters: `auto` (the model's), `vllm` (none), or a "
        "directory; the raw path uses them only if this is set.",
    ),
    Row(
        "OVERRIDE_GENERATION_CONFIG",
        LLM,
        "Generation config overrides",
        "Default sampling parameters that override those of `GENERATION_CONFIG`.",
    ),
    Row(
        "HF_OVERRIDES",
        LLM,
        "Config overrides",
        "Keys of the model's `config.json` to override.",
    ),
    Row(
        "MODEL_IMPL",
        LLM,
        "Implementation",
        "Implementation of the model; `auto` uses vLLM's if there is one, otherwise that in "
        "transformers.",
    ),
    Row(
        "RUNNER",
        LLM,
        "Runner",
        "Use of a model that supports both: `generate` for text, or `pooling`, for example for "
        "embeddings.",
    ),
    Row(
        "CONVERT",
        LLM,
        "Convert",
        "Convert a generative model to an embedding model or a classifier.",
    ),
    Row(
        "POOLER_CONFIG",
        LLM,
        "Pooler",
        "How an embedding or pooling model combines many vectors into one.",
    ),
    Row(
        "MODEL_LOADER_EXTRA_CONFIG",
        LLM,
        "Loader",
        "Additional options for the loader of `LOAD_FORMAT`.",
    ),
    Row(
        "DISABLE_SLIDING_WINDOW",
        LLM,
        "No sliding window",
        "Limit the context to the length of the model's sliding window.",
    ),
    Row(
        "MAX_LOGPROBS",
        LLM,
        "Maximum log probabilities",
        "Maximum number of log probabilities per token that requests may ask for; `-1`: the whole "
        "vocabulary.",
    ),
    Row(
        "TOKENIZER_REVISION",
        TOKENIZER,
        "Tokenizer revision",
        "Branch, tag or commit of the tokenizer's repository.",
        form=True,
        advanced=True,
    ),
    Row(
        "TOKENIZER_MODE",
        TOKENIZER,
        "Tokenizer mode",
        "Implementation of the tokenizer; `auto` chooses it from the model's files.",
    ),
    Row(
        "SKIP_TOKENIZER_INIT",
        TOKENIZER,
        "No tokenizer",
        "Don't load a tokenizer: prompts must be token ids, and answers have no text.",
    ),
    Row(
        "RENDERER_NUM_WORKERS",
        TOKENIZER,
        "Rendering threads",
        "Number of threads that render templates and tokenize prompts; unset, 2, or 1 for "
        "multimodal pooling models and without a tokenizer. With several threads, one always stays "
        "free of long texts.",
    ),
    Row(
        "CHAT_TEMPLATE_CONTENT_FORMAT",
        TOKENIZER,
        "Content in templates",
        "Format in which the template gets a message's content: a `string`, or a list of parts "
        "(`openai`).",
    ),
    Row(
        "DEFAULT_CHAT_TEMPLATE_KWARGS",
        TOKENIZER,
        "Template variables",
        "Variables of the chat template for requests that don't set them.",
    ),
    Row(
        "TRUST_REQUEST_CHAT_TEMPLATE",
        TOKENIZER,
        "Templates of requests",
        "Allow requests to contain their own chat template, which runs in the worker.",
    ),
)
