"""Options of vLLM about the model, its weights and its tokenizer."""

from table.row import LLM, TOKENIZER, Row

MODEL_ROWS = (
    Row(
        "MAX_MODEL_LEN",
        LLM,
        "Context length",
        "Most tokens of a request, prompt and answer together; unset, the "
        "model's own, or as many as the memory holds.",
        form=True,
    ),
    Row(
        "DTYPE",
        LLM,
        "Data type",
        "Precision of weights and activations; `auto` is what the checkpoint has.",
        form=True,
    ),
    Row(
        "QUANTIZATION",
        LLM,
        "Quantization",
        "Method by which the weights are quantized; unset, what the model's configuration names.",
        form=True,
    ),
    Row(
        "KV_CACHE_DTYPE",
        LLM,
        "KV cache data type",
        "Precision of the KV cache; `fp8` makes room for twice the tokens of 16 bits.",
        form=True,
    ),
    Row(
        "LOAD_FORMAT",
        LLM,
        "Load format",
        "Form of the weights; `auto` takes safetensors where there are some.",
        form=True,
        advanced=True,
    ),
    Row(
        "TRUST_REMOTE_CODE",
        LLM,
        "Trust remote code",
        "Code of the model's repository may run in the worker; some new architectures need it.",
        form=True,
    ),
    Row(
        "SEED",
        LLM,
        "Seed",
        "Start of the random numbers of requests that bring no seed.",
        form=True,
        advanced=True,
    ),
    Row(
        "DOWNLOAD_DIR",
        LLM,
        "Download directory",
        "Directory that weights are downloaded to, in place of Hugging Face's cache.",
    ),
    Row(
        "GENERATION_CONFIG",
        LLM,
        "Generation config",
        "Where default sampling parameters come from: `auto` (the model's), `vllm` (none), or a "
        "directory; the raw path uses it only where it is set.",
    ),
    Row(
        "OVERRIDE_GENERATION_CONFIG",
        LLM,
        "Generation config overrides",
        "Default sampling parameters over those of `GENERATION_CONFIG`.",
    ),
    Row(
        "HF_OVERRIDES",
        LLM,
        "Config overrides",
        "Keys of the model's `config.json` with other values.",
    ),
    Row(
        "MODEL_IMPL",
        LLM,
        "Implementation",
        "Whose code runs the model: vLLM's, that of transformers, or whichever there is.",
    ),
    Row(
        "RUNNER",
        LLM,
        "Runner",
        "What the model is used for, where it can do both: `generate` text, or `pooling` such as "
        "embeddings.",
    ),
    Row(
        "CONVERT",
        LLM,
        "Convert",
        "Makes an embedder or a classifier of a model that generates.",
    ),
    Row(
        "POOLER_CONFIG",
        LLM,
        "Pooler",
        "How an embedding or pooling model makes one vector of many.",
    ),
    Row(
        "MODEL_LOADER_EXTRA_CONFIG",
        LLM,
        "Loader",
        "Further options of the loader that `LOAD_FORMAT` names.",
    ),
    Row(
        "DISABLE_SLIDING_WINDOW",
        LLM,
        "No sliding window",
        "The context ends where the model's sliding window would begin to slide.",
    ),
    Row(
        "MAX_LOGPROBS",
        LLM,
        "Most log probabilities",
        "Most log probabilities a token that requests may ask for; `-1`: the whole vocabulary.",
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
        "Implementation of the tokenizer; `auto` chooses by the model's files.",
    ),
    Row(
        "SKIP_TOKENIZER_INIT",
        TOKENIZER,
        "No tokenizer",
        "No tokenizer is loaded: prompts must be token ids, and answers have no text.",
    ),
    Row(
        "RENDERER_NUM_WORKERS",
        TOKENIZER,
        "Rendering threads",
        "Threads that render templates and tokenize prompts; unset, the worker takes 2, but for "
        "models that embed what they see, and one is always free of long texts.",
    ),
    Row(
        "CHAT_TEMPLATE_CONTENT_FORMAT",
        TOKENIZER,
        "Content in templates",
        "How a message's content reaches the template: as a `string`, or as `openai`'s list of "
        "parts.",
    ),
    Row(
        "DEFAULT_CHAT_TEMPLATE_KWARGS",
        TOKENIZER,
        "Template variables",
        "Variables of the chat template, where a request does not set them.",
    ),
    Row(
        "TRUST_REQUEST_CHAT_TEMPLATE",
        TOKENIZER,
        "Templates of requests",
        "Requests may bring a chat template of their own, which runs in the worker.",
    ),
)
