"""Mistakes that operators make in settings, and the messages about them.

A row is the settings, the name that the message must have, and a part of its text.
``<folder>`` in a value stands for a directory that holds ``FILES``. No message may repeat SECRET.
"""

from pathlib import Path

SECRET = "sk-canary"

Row = tuple[dict[str, str], str, str]

FILES = {
    "template.jinja": "{% for m in messages %}\n{{ m.content }}\n{% if x %}\n",
    "broken.yaml": "seed: 1\ndtype: [half\n",
    "list.yaml": "- seed\n",
    "unknown.yaml": "max-model-length: 4096\n",
    "stranger.yaml": "foo_bar: 3\n",
    "wrong.yaml": "seed: abc\n",
    "own.yaml": "max-concurrency: 0\n",
    "secret.yaml": "hf-overrides: {key: sk-canary\n",
}

# Single settings, so that many can stand in one environment.
SINGLE: tuple[tuple[str, str, str], ...] = (
    # Numbers
    ("MAX_MODEL_LEN", "abc", "a whole number, or one such as 16k"),
    ("MAX_NUM_SEQS", "0", "at least 1"),
    ("MAX_NUM_BATCHED_TOKENS", "8.5", "a whole number"),
    ("GPU_MEMORY_UTILIZATION", "95%", "a number, above 0, at most 1"),
    ("SEED", "x", "a whole number"),
    ("BLOCK_SIZE", "0", "above 0"),
    ("MAX_PARALLEL_LOADING_WORKERS", "two", "a whole number, at least 1"),
    ("TENSOR_PARALLEL_SIZE", "0", "at least 1"),
    ("PIPELINE_PARALLEL_SIZE", "-1", "at least 1"),
    ("DATA_PARALLEL_SIZE", "two", "a whole number, at least 1"),
    ("MAX_LOGPROBS", "-2", "at least -1"),
    ("STREAM_INTERVAL", "0", "at least 1"),
    ("MAX_LORAS", "0", "at least 1"),
    ("CPU_OFFLOAD_GB", "-1", "at least 0"),
    ("MAX_CONCURRENCY", "0", "a whole number of at least 1, or auto"),
    ("DEFAULT_BATCH_SIZE", "1.5", "a valid integer"),
    ("DEFAULT_MIN_BATCH_SIZE", "-1", "greater than or equal to 0"),
    ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "inf", "a finite number"),
    ("DEFAULT_BATCH_MAX_DELAY_MS", "soon", "a valid number"),
    ("DEFAULT_MAX_TOKENS", "16 tokens", "a valid integer"),
    # Booleans
    ("RAW_OPENAI_OUTPUT", "2", "one of 0/1, true/false, yes/no, on/off"),
    ("DISABLE_LOG_STATS", "none", "one of 0/1, true/false, yes/no, on/off"),
    ("DISABLE_LOG_REQUESTS", "-1", "one of 0/1, true/false, yes/no, on/off"),
    ("STRICT_REQUESTS", "ja", "one of 0/1, true/false, yes/no, on/off"),
    ("TRUST_REMOTE_CODE", "2", "one of 0/1, true/false, yes/no, on/off"),
    ("ENFORCE_EAGER", "maybe", "one of 0/1, true/false, yes/no, on/off"),
    ("ENABLE_PREFIX_CACHING", "t", "one of 0/1, true/false, yes/no, on/off"),
    # Choices
    ("DTYPE", "float8", "did you mean float? One of auto, bfloat16"),
    ("QUANTIZATION", "squeezellm", "vLLM has had no squeezellm since 0.6"),
    ("KV_CACHE_DTYPE", "fp7", "did you mean fp8? One of auto"),
    ("LOAD_FORMAT", "safetensor", "did you mean safetensors?"),
    ("TOKENIZER_MODE", "quick", "one of auto, hf"),
    ("RUNNER", "generat", "did you mean generate?"),
    ("LORA_DTYPE", "float64", "One of auto, bfloat16, float16"),
    ("MAX_LORA_RANK", "17", "one of 1, 8, 16, 32"),
    ("DISTRIBUTED_EXECUTOR_BACKEND", "rayy", "did you mean ray?"),
    ("SCHEDULING_POLICY", "lifo", "one of fcfs, priority"),
    ("CHAT_TEMPLATE_CONTENT_FORMAT", "json", "one of auto, openai, string"),
    ("OPTIMIZATION_LEVEL", "9", "O3, for example OPTIMIZATION_LEVEL="),
    ("VLLM_ATTENTION_BACKEND", "FLASH", "One of FLASH_ATTN"),
    ("REASONING_PARSER", "qwen33", "did you mean qwen3?"),
    # JSON and lists
    (
        "HF_OVERRIDES",
        '{"key": "sk-canary"',
        "broken JSON: Expecting ',' delimiter: line 1 column 20",
    ),
    ("SPECULATIVE_CONFIG", "5", "a JSON object"),
    ("COMPILATION_CONFIG", '{"sk": "sk-canary"}', "sk: Unexpected keyword argument"),
    ("KV_TRANSFER_CONFIG", '{"kv_connector": 5, "token": "sk-canary"}', "kv_connector"),
    ("STRUCTURED_OUTPUTS_CONFIG", '{"backend": "xgramar"}', "'xgrammar'"),
    ("OVERRIDE_GENERATION_CONFIG", '{"temperature": }', "broken JSON: Expecting value: line 1"),
    ("MODEL_LOADER_EXTRA_CONFIG", "{", "broken JSON: Expecting property name"),
    ("LIMIT_MM_PER_PROMPT", "image", "a JSON object"),
    ("CUDAGRAPH_CAPTURE_SIZES", "1,x", "a JSON list, or items with commas between"),
    ("SERVED_MODEL_NAME", '["a"', "broken JSON: Expecting ',' delimiter: line 1 column 5"),
    ("LORA_MODULES", '[{"name"', "broken JSON: Expecting ':' delimiter: line 1 column 9"),
    ("CUSTOM_CHAT_TEMPLATE", "{% for m in messages %}\n{{ m", "no Jinja template"),
)

# Mistakes that need another setting, or a file.
TOGETHER: tuple[Row, ...] = (
    ({"MODEL_NAME": ""}, "MODEL_NAME", "it is required, for example MODEL_NAME=Qwen/Qwen3-0.6B"),
    ({"MODEL_NAME": "<folder>/nothing"}, "MODEL_NAME", "there is no such directory"),
    ({"MODEL_NAME": "https://huggingface.co/org/model"}, "MODEL_NAME", "written as owner/name"),
    ({"MODEL": "org/other"}, "MODEL_NAME", "MODEL=org/other is the same setting"),
    (
        {"MIN_BATCH_SIZE": "2", "DEFAULT_MIN_BATCH_SIZE": "3"},
        "MIN_BATCH_SIZE",
        "DEFAULT_MIN_BATCH_SIZE=3 is the same setting: set one of them",
    ),
    (
        {"ENABLE_LOG_REQUESTS": "1", "DISABLE_LOG_REQUESTS": "1"},
        "ENABLE_LOG_REQUESTS",
        "DISABLE_LOG_REQUESTS=1 is the same setting",
    ),
    (
        {"HF_TOKEN": "sk-canary-1", "HUGGING_FACE_HUB_TOKEN": "sk-canary-2"},
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN=*** is the same setting",
    ),
    ({"LORA_MODULES": "a=org/a"}, "LORA_MODULES", "adapters need ENABLE_LORA=1"),
    (
        {"LORA_MODULES": '{"name": "a", "path": "b", "key": "sk-canary"}', "ENABLE_LORA": "1"},
        "LORA_MODULES",
        "Invalid fields",
    ),
    ({"ENABLE_AUTO_TOOL_CHOICE": "1"}, "ENABLE_AUTO_TOOL_CHOICE", "requires TOOL_CALL_PARSER"),
    (
        {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "hermess"},
        "TOOL_CALL_PARSER",
        "did you mean hermes? One of",
    ),
    (
        {"TOOL_PARSER_PLUGIN": "<folder>/nothing.py"},
        "TOOL_PARSER_PLUGIN",
        "there is no such file",
    ),
    (
        {"CUSTOM_CHAT_TEMPLATE": "a\n{{ 1 }}\n{% if %}"},
        "CUSTOM_CHAT_TEMPLATE",
        "in line 3",
    ),
    ({"CUSTOM_CHAT_TEMPLATE": "<folder>/template.jinja"}, "CUSTOM_CHAT_TEMPLATE", "in line 3"),
    ({"CUSTOM_CHAT_TEMPLATE": "<folder>/no.jinja"}, "CUSTOM_CHAT_TEMPLATE", "neither the path"),
    ({"CUSTOM_CHAT_TEMPLATE": "{{ a | no_filter }}"}, "CUSTOM_CHAT_TEMPLATE", "no_filter"),
    (
        {"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_CONFIG": "{}"},
        "SPECULATIVE_METHOD",
        "given, too",
    ),
    ({"NUM_SPECULATIVE_TOKENS": "five"}, "NUM_SPECULATIVE_TOKENS", "a valid integer"),
    ({"HF_OVERRIDES": "text"}, "HF_OVERRIDES", "a JSON object"),
    # The config file
    ({"VLLM_CONFIG_FILE": "<folder>/no.yaml"}, "VLLM_CONFIG_FILE", "can't be read"),
    ({"VLLM_CONFIG_FILE": "<folder>"}, "VLLM_CONFIG_FILE", "can't be read"),
    ({"VLLM_CONFIG_FILE": "<folder>/broken.yaml"}, "VLLM_CONFIG_FILE", "line 3, column 1"),
    ({"VLLM_CONFIG_FILE": "<folder>/secret.yaml"}, "VLLM_CONFIG_FILE", "can't be read"),
    ({"VLLM_CONFIG_FILE": "<folder>/list.yaml"}, "VLLM_CONFIG_FILE", "holds no settings"),
    (
        {"VLLM_CONFIG_FILE": "<folder>/unknown.yaml"},
        "MAX_MODEL_LENGTH",
        "(in <folder>/unknown.yaml) no setting: did you mean MAX_MODEL_LEN?",
    ),
    ({"VLLM_CONFIG_FILE": "<folder>/stranger.yaml"}, "FOO_BAR", "no setting"),
    (
        {"VLLM_CONFIG_FILE": "<folder>/wrong.yaml"},
        "SEED",
        "(in <folder>/wrong.yaml) a whole number",
    ),
    (
        {"VLLM_CONFIG_FILE": "<folder>/own.yaml"},
        "MAX_CONCURRENCY",
        "(in <folder>/own.yaml) a whole number of at least 1, or auto",
    ),
    # Extra arguments
    ({"VLLM_EXTRA_ARGS": "--no-such 5"}, "VLLM_EXTRA_ARGS", "unrecognized arguments: --no-such"),
    ({"VLLM_EXTRA_ARGS": '--seed "5'}, "VLLM_EXTRA_ARGS", "No closing quotation"),
    ({"VLLM_EXTRA_ARGS": "--port 5"}, "VLLM_EXTRA_ARGS", "--port"),
    ({"VLLM_EXTRA_ARGS": "--middleware a.b"}, "VLLM_EXTRA_ARGS", "--middleware"),
    ({"VLLM_EXTRA_ARGS": "--config <folder>/own.yaml"}, "VLLM_EXTRA_ARGS", "--config"),
    ({"VLLM_EXTRA_ARGS": "--help"}, "VLLM_EXTRA_ARGS", "--help"),
    ({"VLLM_EXTRA_ARGS": "--api-key sk-canary"}, "VLLM_EXTRA_ARGS", "--api-key"),
    ({"VLLM_EXTRA_ARGS": "--api-key=sk-canary"}, "VLLM_EXTRA_ARGS", "--api-key"),
    ({"VLLM_EXTRA_ARGS": "--hf-token sk-canary"}, "VLLM_EXTRA_ARGS", "--hf-token"),
    ({"VLLM_EXTRA_ARGS": "--seed abc"}, "VLLM_EXTRA_ARGS", "--seed: a whole number"),
    ({"VLLM_EXTRA_ARGS": "--seed"}, "VLLM_EXTRA_ARGS", "expected one argument"),
    ({"VLLM_EXTRA_ARGS": "--gpu-memory-utilization 3"}, "VLLM_EXTRA_ARGS", "above 0, at most 1"),
    ({"VLLM_EXTRA_ARGS": "--dtype float8"}, "VLLM_EXTRA_ARGS", "--dtype"),
    ({"VLLM_EXTRA_ARGS": "--quantization squeezellm"}, "VLLM_EXTRA_ARGS", "since 0.6"),
    (
        {"VLLM_EXTRA_ARGS": """--compilation-config '{"sk": "sk-canary"}'"""},
        "VLLM_EXTRA_ARGS",
        "--compilation-config",
    ),
    ({"VLLM_EXTRA_ARGS": "--lora-modules a=b"}, "LORA_MODULES", "adapters need ENABLE_LORA=1"),
    # The embedder
    ({"EMBEDDING_MODEL_NAME": "<folder>/no"}, "EMBEDDING_MODEL_NAME", "there is no such directory"),
    (
        {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_MODEL": "org/f"},
        "EMBEDDING_MODEL_NAME",
        "EMBEDDING_MODEL=org/f is the same setting",
    ),
    (
        {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_SEED": "y"},
        "EMBEDDING_SEED",
        "a whole number",
    ),
    (
        {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_RUNNER": "embed"},
        "EMBEDDING_RUNNER",
        "one of auto, draft, generate, pooling",
    ),
    (
        {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_HF_OVERRIDES": '{"key": "sk-canary"'},
        "EMBEDDING_HF_OVERRIDES",
        "broken JSON",
    ),
    (
        {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_CHAT_TEMPLATE": "{% if %}"},
        "EMBEDDING_CHAT_TEMPLATE",
        "no Jinja template",
    ),
    (
        {"EMBEDDING_MODEL_NAME": "org/e", "EMBEDDING_GPU_MEMORY_UTILIZATION": "half"},
        "EMBEDDING_GPU_MEMORY_UTILIZATION",
        "a number, above 0, at most 1",
    ),
    (
        {
            "EMBEDDING_MODEL_NAME": "org/e",
            "EMBEDDING_GPU_MEMORY_UTILIZATION": "0.5",
            "GPU_MEMORY_UTILIZATION": "0.6",
        },
        "EMBEDDING_GPU_MEMORY_UTILIZATION",
        "with GPU_MEMORY_UTILIZATION=0.6 for the model there is no room for it",
    ),
)

# Misspelled names and the settings that were meant: warnings, not mistakes.
TYPOS = {
    "MAX_MODEL_LENGTH": "MAX_MODEL_LEN",
    "MAX_CONTEXT_LENGTH": "MAX_MODEL_LEN",
    "VLLM_MAX_MODEL_LEN": "MAX_MODEL_LEN",
    "GPU_MEMORY_UTILISATION": "GPU_MEMORY_UTILIZATION",
    "TENSOR_PARALELL_SIZE": "TENSOR_PARALLEL_SIZE",
    "NUM_GPUS": "TENSOR_PARALLEL_SIZE",
    "MAX_CONCURENCY": "MAX_CONCURRENCY",
    "TRUST_REMOTECODE": "TRUST_REMOTE_CODE",
    "QUANTISATION": "QUANTIZATION",
    "MODEL_ID": "MODEL_NAME",
    "MODELNAME": "MODEL_NAME",
    "TOKENIZER_NAMES": "TOKENIZER_NAME",
    "MODEL_REVISIONS": "MODEL_REVISION",
    "CUSTOM_CHAT_TEMPLATES": "CUSTOM_CHAT_TEMPLATE",
    "OPENAI_RESPONSE_ROLES": "OPENAI_RESPONSE_ROLE",
    "HF_TOKENN": "HF_TOKEN",
    "HUGGINGFACE_TOKEN": "HF_TOKEN",
    "TOOL_PARSER": "TOOL_CALL_PARSER",
    "ENABLE_LORAS": "ENABLE_LORA",
    "LORA_MODULE": "LORA_MODULES",
    "DISABLE_LOG_REQUEST": "DISABLE_LOG_REQUESTS",
    "BATCH_SIZE": "DEFAULT_BATCH_SIZE",
    "VLLM_CONFIG": "VLLM_CONFIG_FILE",
    "HF_HUB_OFLINE": "HF_HUB_OFFLINE",
}


def placed(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """Write the files to a folder; return the settings with its path in them."""
    for name, held in FILES.items():
        (folder / name).write_text(held)
    return {name: value.replace("<folder>", str(folder)) for name, value in settings.items()}
