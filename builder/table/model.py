"""The model, and the memory that it needs."""

from table.row import MEMORY, MODEL, Row, rows

MODEL_ROWS = rows(
    MODEL,
    Row(
        "MODEL_NAME",
        "Model",
        "Required. The model: a repository on the hub (`owner/name`) or a directory.",
        form=True,
    ),
    Row("MODEL_REVISION", "Model revision", "Branch, tag or commit of the repository.", form=True),
    Row(
        "HF_TOKEN",
        "Hugging Face token",
        "Token for private and gated models on the hub. It never appears in messages or logs.",
        form=True,
    ),
    Row(
        "BASE_PATH",
        "Base path",
        "Directory of the network volume. Models are downloaded to `huggingface-cache` in it, "
        "unless `HF_HOME` is set; LoRA adapters are in `adapters`.",
        form=True,
        advanced=True,
    ),
    Row(
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
        "Served model name",
        "Additional names of the model for requests, separated by commas. Responses have the first "
        "one.",
        form=True,
    ),
    Row(
        "EMBEDDING_MODEL_NAME",
        "Embedding model",
        "An embedding model to serve next to the model, in a separate engine.",
        form=True,
        advanced=True,
    ),
    Row(
        "QUANTIZATION",
        "Quantization",
        "Quantization method of the weights; unset, the one in the model's configuration.",
        form=True,
    ),
    Row(
        "DTYPE",
        "Data type",
        "Data type of weights and activations; `auto` uses the checkpoint's.",
        form=True,
    ),
    Row(
        "TRUST_REMOTE_CODE",
        "Trust remote code",
        "Run code from the model's repository in the worker; some new architectures need it.",
        form=True,
    ),
    Row(
        "LOAD_FORMAT",
        "Load format",
        "Format of the weights; `auto` prefers safetensors.",
        form=True,
        advanced=True,
    ),
    Row(
        "RUNNER",
        "Runner",
        "For models that can do both: `generate` text, or `pooling`, for example for embeddings.",
    ),
    Row("CONVERT", "Convert", "Turn a generative model into an embedding model or a classifier."),
    Row("POOLER_CONFIG", "Pooler", "How a pooling model combines the vectors of a text into one."),
    Row(
        "HF_OVERRIDES",
        "Config overrides",
        "Keys of the model's `config.json` to override. If `MAX_MODEL_LEN` exceeds the model's own "
        "context, `--check` proposes them for YaRN.",
    ),
    Row(
        "MODEL_IMPL",
        "Implementation",
        "Implementation of the model; `auto` uses vLLM's if there is one, otherwise that in "
        "transformers.",
    ),
    Row(
        "TOKENIZER_NAME",
        "Tokenizer",
        "Repository or directory of a tokenizer to use instead of the model's own.",
        form=True,
        advanced=True,
    ),
    Row(
        "TOKENIZER_REVISION",
        "Tokenizer revision",
        "Branch, tag or commit of the tokenizer's repository.",
        form=True,
        advanced=True,
    ),
    Row(
        "TOKENIZER_MODE",
        "Tokenizer mode",
        "Implementation of the tokenizer; `auto` chooses it by the model's files.",
    ),
    Row(
        "SKIP_TOKENIZER_INIT",
        "No tokenizer",
        "Don't load a tokenizer: prompts must be token ids, and answers have no text.",
    ),
    Row(
        "DOWNLOAD_DIR",
        "Download directory",
        "Directory for downloaded weights, instead of Hugging Face's cache.",
    ),
    Row(
        "MODEL_LOADER_EXTRA_CONFIG", "Loader", "Additional options for the loader of `LOAD_FORMAT`."
    ),
)
MEMORY_ROWS = rows(
    MEMORY,
    Row(
        "MAX_MODEL_LEN",
        "Context length",
        "Maximum tokens of a request, prompt and answer together; unset, the model's own maximum, "
        "or as many as fit into memory.",
        form=True,
    ),
    Row(
        "MIN_MODEL_LEN",
        "Minimum context",
        "If `MAX_MODEL_LEN` is unset and the model's own context doesn't fit into memory, the "
        "start fails unless this many tokens do.",
    ),
    Row(
        "GPU_MEMORY_UTILIZATION",
        "GPU memory",
        "Share of each GPU's memory, from 0 to 1, for weights and KV cache; unset, 0.85 with an "
        "embedding model, which then has 0.1.",
        form=True,
    ),
    Row(
        "KV_CACHE_DTYPE",
        "KV cache data type",
        "Data type of the KV cache; `fp8` fits twice as many tokens as a 16-bit type.",
        form=True,
    ),
    Row(
        "TENSOR_PARALLEL_SIZE",
        "Tensor parallelism",
        "Number of GPUs across which every layer is split; unset, the largest number of the "
        "worker's GPUs that divides the model's attention heads.",
        form=True,
    ),
    Row(
        "PIPELINE_PARALLEL_SIZE",
        "Pipeline parallelism",
        "Number of stages into which the layers are divided, each on its own GPUs.",
        form=True,
        advanced=True,
    ),
    Row("CPU_OFFLOAD_GB", "Weights in RAM (GiB)", "GiB of weights per GPU that stay in RAM."),
    Row(
        "KV_CACHE_MEMORY_BYTES",
        "KV cache (bytes)",
        "Bytes per GPU for the KV cache, instead of the memory that `GPU_MEMORY_UTILIZATION` "
        "leaves.",
    ),
    Row(
        "KV_OFFLOADING_SIZE",
        "KV cache in RAM (GiB)",
        "GiB of RAM, for all GPUs together, for KV cache blocks that don't fit on the GPUs.",
    ),
    Row(
        "BLOCK_SIZE",
        "Block size",
        "Tokens in a block of the KV cache; unset, the attention backend's choice.",
        form=True,
        advanced=True,
    ),
    Row(
        "NUM_GPU_BLOCKS_OVERRIDE",
        "Blocks of the KV cache",
        "Number of KV cache blocks, instead of as many as fit.",
    ),
    Row(
        "DISABLE_SLIDING_WINDOW",
        "No sliding window",
        "Limit the context to the model's sliding window.",
    ),
)
