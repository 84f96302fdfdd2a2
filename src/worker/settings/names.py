"""The names of settings: aliases, removed settings, and checks for unknown names."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from worker.settings import history
from worker.settings.mistakes import Mistake
from worker.validation import find_similar_names

# Settings that set an option of vLLM with another name.
OPTION_BY_SETTING = {
    "MODEL_NAME": "MODEL",
    "MODEL_REVISION": "REVISION",
    "TOKENIZER_NAME": "TOKENIZER",
    "CUSTOM_CHAT_TEMPLATE": "CHAT_TEMPLATE",
    "OPENAI_RESPONSE_ROLE": "RESPONSE_ROLE",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "SERVED_MODEL_NAME",
}

# Alternative names of settings, with their canonical names: vLLM's names and those of earlier
# workers.
CANONICAL_NAMES = {option: name for name, option in OPTION_BY_SETTING.items()} | {
    "MIN_BATCH_SIZE": "DEFAULT_MIN_BATCH_SIZE",
    "BATCH_SIZE_GROWTH_FACTOR": "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
    "DISABLE_LOGGING_REQUEST": "DISABLE_LOG_REQUESTS",
    "HUGGING_FACE_HUB_TOKEN": "HF_TOKEN",
    "VLLM_ATTENTION_BACKEND": "ATTENTION_BACKEND",
}

# Aliases with the opposite meaning: ENABLE_X=1 equals DISABLE_X=0.
NEGATED_NAMES = {"ENABLE_LOG_REQUESTS": "DISABLE_LOG_REQUESTS"}

# Variables that set a single key of SPECULATIVE_CONFIG, with the key.
SPECULATIVE_KEYS = {
    "SPECULATIVE_METHOD": "method",
    "SPECULATIVE_MODEL": "model",
    "SPECULATIVE_MODEL_REVISION": "revision",
    "SPECULATIVE_QUANTIZATION": "quantization",
    "SPECULATIVE_MODEL_QUANTIZATION": "quantization",
    "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "draft_tensor_parallel_size",
    "SPECULATIVE_MAX_MODEL_LEN": "max_model_len",
    "SPECULATIVE_ENFORCE_EAGER": "enforce_eager",
    "NUM_SPECULATIVE_TOKENS": "num_speculative_tokens",
    "NGRAM_PROMPT_LOOKUP_MAX": "prompt_lookup_max",
    "NGRAM_PROMPT_LOOKUP_MIN": "prompt_lookup_min",
}

_BY_BATCH = "CUDA graphs are captured by batch size, up to MAX_CUDAGRAPH_CAPTURE_SIZE"
_SCHEDULER = "vLLM's scheduler no longer needs it"
_GUIDED = 'set STRUCTURED_OUTPUTS_CONFIG, for example to {"backend": "xgrammar"}'
_ROPE = 'set all of "rope_parameters" in HF_OVERRIDES'
_EPLB = "set EPLB_CONFIG"
_RAY = "set DISTRIBUTED_EXECUTOR_BACKEND=ray"
_POOL = "set RENDERER_NUM_WORKERS, the number of threads that tokenize"
_PROMPT_ADAPTERS = "vLLM no longer has prompt adapters; use LoRA adapters (ENABLE_LORA)"
_SPECULATIVE = "set it in SPECULATIVE_CONFIG"
_BUILD = "the image has one version of each library, which depends on vLLM's release"

# Settings that are accepted but have no effect, with replacements or reasons.
REMOVED_SETTINGS = {
    "API_KEY": "the platform checks keys; SERVE_API_KEY is the key with --serve",
    "CALCULATE_KV_SCALES": "scales of an FP8 KV cache are read from the checkpoint",
    "CUDA_GRAPH_SIZES": "set CUDAGRAPH_CAPTURE_SIZES",
    "DEVICE": "the installed build of vLLM decides",
    "DISABLE_ASYNC_OUTPUT_PROC": "set ASYNC_SCHEDULING=0 for a similar effect",
    "DISABLE_MM_PREPROCESSOR_CACHE": "set MM_PROCESSOR_CACHE_GB=0",
    "ENABLE_PROMPT_ADAPTER": _PROMPT_ADAPTERS,
    "ENABLE_REASONING": "REASONING_PARSER is enough",
    "ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL": "set MM_ENCODER_TP_MODE=data",
    "ENGINE_USE_RAY": _RAY,
    "EPLB_LOG_BALANCEDNESS": _EPLB,
    "EPLB_STEP_INTERVAL": _EPLB,
    "EPLB_WINDOW_SIZE": _EPLB,
    "EXPAND_TOOLS_EVEN_IF_TOOL_CHOICE_NONE": "set EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE",
    "GUIDED_DECODING_BACKEND": _GUIDED,
    "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES": _GUIDED,
    "GUIDED_DECODING_DISABLE_ANY_WHITESPACE": _GUIDED,
    "GUIDED_DECODING_DISABLE_FALLBACK": _GUIDED,
    "LOGITS_PROCESSOR_PATTERN": "set LOGITS_PROCESSORS",
    "LONG_LORA_SCALING_FACTORS": "adapters contain their own scaling",
    "LORA_EXTRA_VOCAB_SIZE": "adapters can no longer add tokens to the vocabulary",
    "MAX_CONTEXT_LEN_TO_CAPTURE": _BY_BATCH,
    "MAX_LONG_PARTIAL_PREFILLS": _SCHEDULER,
    "MAX_NUM_PARTIAL_PREFILLS": _SCHEDULER,
    "MAX_PROMPT_ADAPTERS": _PROMPT_ADAPTERS,
    "MAX_PROMPT_ADAPTER_TOKEN": _PROMPT_ADAPTERS,
    "MAX_SEQ_LEN_TO_CAPTURE": _BY_BATCH,
    "MULTI_STEP_STREAM_OUTPUTS": "set STREAM_INTERVAL, which groups tokens",
    "NUM_LOOKAHEAD_SLOTS": _SCHEDULER,
    "NUM_REDUNDANT_EXPERTS": _EPLB,
    "NUM_SCHEDULER_STEPS": "set ASYNC_SCHEDULING=1, which prepares the next step while one runs",
    "OVERRIDE_POOLER_CONFIG": "set POOLER_CONFIG",
    "PREEMPTION_CHECK_PERIOD": _SCHEDULER,
    "PREEMPTION_CPU_CAPACITY": _SCHEDULER,
    "PREEMPTION_MODE": _SCHEDULER,
    "QUANTIZATION_PARAM_PATH": "scales of an FP8 KV cache are read from the checkpoint",
    "REQUEST_TIMEOUT": "the endpoint's execution timeout limits jobs",
    "ROPE_SCALING": _ROPE,
    "ROPE_THETA": _ROPE,
    "SCHEDULER_DELAY_FACTOR": _SCHEDULER,
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "drafts are made for batches of any size",
    "SPEC_DECODING_ACCEPTANCE_METHOD": _SPECULATIVE,
    "SWAP_SPACE": "set CPU_OFFLOAD_GB for weights, KV_OFFLOADING_SIZE for the KV cache",
    "TASK": "set RUNNER (generate, pooling) and CONVERT (embed, classify)",
    "TENSORIZE": "LOAD_FORMAT=tensorizer loads serialized models",
    "TENSORIZER_NUM_GPUS": "LOAD_FORMAT=tensorizer loads serialized models",
    "TESTING_DOWNLOAD": "--check shows where the model would come from",
    "TOKENIZER_POOL_EXTRA_CONFIG": _POOL,
    "TOKENIZER_POOL_SIZE": _POOL,
    "TOKENIZER_POOL_TYPE": _POOL,
    "TRANSFORMERS_VERSION": _BUILD,
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": _SPECULATIVE,
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": _SPECULATIVE,
    "USE_V2_BLOCK_MANAGER": _SCHEDULER,
    "VLLM_BASE_URL": "the engine runs inside the worker, without a server",
    "VLLM_NIGHTLY": _BUILD,
    "VLLM_USE_V1": "vLLM has only one engine left",
    "VLLM_STARTUP_TIMEOUT": "set VLLM_ENGINE_READY_TIMEOUT_S",
    "WORKER_CUDA_VERSION": _BUILD,
    "WORKER_USE_RAY": _RAY,
}

# Environment variables of libraries that operators commonly set.
LIBRARY_VARIABLES = frozenset(
    """
    CUDA_VISIBLE_DEVICES HF_ENDPOINT HF_HOME HF_HUB_CACHE HF_HUB_DISABLE_XET HF_HUB_OFFLINE
    HF_XET_HIGH_PERFORMANCE HUGGINGFACE_HUB_CACHE OMP_NUM_THREADS OTEL_RESOURCE_ATTRIBUTES
    OTEL_SERVICE_NAME RUNPOD_INIT_TIMEOUT RUNPOD_LOG_LEVEL TRANSFORMERS_OFFLINE
    """.split()
)

# Options of vLLM that the worker doesn't accept. Other programs use variables with the same names.
FOREIGN_OPTIONS = frozenset({"CONFIG", "HELP", "HOST", "MODEL_TAG", "PORT", "PORT_HEALTH"})

# Common wrong names that don't resemble the right names, with the right names.
CORRECTIONS = {
    "BATCH_SIZE": "DEFAULT_BATCH_SIZE",
    "CONTEXT_LENGTH": "MAX_MODEL_LEN",
    "ENABLE_AUTO_TOOLS": "ENABLE_AUTO_TOOL_CHOICE",
    "GPU_COUNT": "TENSOR_PARALLEL_SIZE",
    "GPU_MEM_UTIL": "GPU_MEMORY_UTILIZATION",
    "HF_API_TOKEN": "HF_TOKEN",
    "HF_MODEL": "MODEL_NAME",
    "HUGGINGFACE_API_KEY": "HF_TOKEN",
    "HUGGINGFACE_TOKEN": "HF_TOKEN",
    "HUGGING_FACE_TOKEN": "HF_TOKEN",
    "MAX_BATCH_SIZE": "DEFAULT_BATCH_SIZE",
    "MAX_CONTEXT_LEN": "MAX_MODEL_LEN",
    "MAX_CONTEXT_LENGTH": "MAX_MODEL_LEN",
    "MAX_SEQ_LEN": "MAX_MODEL_LEN",
    "MAX_TOKENS": "DEFAULT_MAX_TOKENS",
    "MODEL_ID": "MODEL_NAME",
    "MODEL_PATH": "MODEL_NAME",
    "MODEL_REPO": "MODEL_NAME",
    "NUM_GPU": "TENSOR_PARALLEL_SIZE",
    "NUM_GPUS": "TENSOR_PARALLEL_SIZE",
    "OPENAI_SERVED_MODEL_NAME": "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
    "SERVED_MODEL": "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
    "TENSOR_PARALLEL": "TENSOR_PARALLEL_SIZE",
    "TOOL_PARSER": "TOOL_CALL_PARSER",
    "TP_SIZE": "TENSOR_PARALLEL_SIZE",
    "VLLM_ARGS": "VLLM_EXTRA_ARGS",
    "VLLM_CONFIG": "VLLM_CONFIG_FILE",
}

# Settings that the platform sets. They resemble its other variables, which are no settings.
PLATFORM_SETTINGS = frozenset(
    """
    RUNPOD_DC_ID RUNPOD_ENDPOINT_BASE_URL RUNPOD_ENDPOINT_ID RUNPOD_POD_ID RUNPOD_VOLUME_ID
    """.split()
)
# Minimum similarity of a misspelled setting: other programs' variables resemble settings.
MIN_SETTING_SIMILARITY = 0.86

_LIBRARY_PREFIXES = ("HF_", "RUNPOD_", "VLLM_")

# Prefix of the settings of the embedder.
EMBEDDER_PREFIX = "EMBEDDING_"


def canonical_name(name: str) -> str:
    """Return the canonical name of a setting or alias; return unknown names unchanged."""
    bare = name.removeprefix(EMBEDDER_PREFIX)
    if bare in CANONICAL_NAMES:
        return name.removesuffix(bare) + CANONICAL_NAMES[bare]
    return name


def explain_removal(name: str) -> str | None:
    """Return since when a setting has no effect, and its replacement; None if it wasn't removed."""
    removal = history.find_removal("options", name)
    if name not in REMOVED_SETTINGS and not removal:
        return None
    since = f"vLLM has had no such option since {removal.first_series_without}" if removal else ""
    return "; ".join(filter(None, (since, REMOVED_SETTINGS.get(name))))


def guess_setting(name: str, names: Iterable[str]) -> str | None:
    names = set(names)
    if name in CORRECTIONS:
        return CORRECTIONS[name]
    # Operators add the prefix of vLLM's own variables to its options, which have no prefix.
    if (unprefixed := name.removeprefix("VLLM_")) != name and unprefixed in names:
        return unprefixed
    near = find_similar_names(name, names, min_similarity=MIN_SETTING_SIMILARITY)
    return near[0] if near else None


@dataclass(frozen=True)
class SettingNames:
    """The names of all settings; ``ineffective`` has the reasons why some have no effect, by name.

    An unknown name in a file is a mistake. In the environment it may be another program's, so one
    that resembles a setting only causes a warning.

    ``vllm_variables`` are names of environment variables that vLLM reads itself.
    """

    worker_settings: frozenset[str]
    vllm_options: frozenset[str]
    ineffective: Mapping[str, str]
    vllm_variables: frozenset[str]

    @cached_property
    def all_names(self) -> set[str]:
        """Names of all settings, including aliases."""
        return {
            *self._names_of_both_engines,
            *self._embedder_names,
            *NEGATED_NAMES,
            *self.worker_settings,
        }

    @cached_property
    def _names_of_both_engines(self) -> set[str]:
        names = {*self.vllm_options, *CANONICAL_NAMES, *SPECULATIVE_KEYS}
        return names - self.worker_settings | OPTION_BY_SETTING.keys()

    @cached_property
    def _embedder_names(self) -> set[str]:
        return {EMBEDDER_PREFIX + name for name in self._names_of_both_engines}

    def find_without_effect(self, spellings: Iterable[str]) -> list[tuple[str, str]]:
        """Return pairs of a name and a warning: settings without effect, and names like settings'.

        ``spellings`` are the operator's names of all variables.
        """
        names = set(spellings)
        reasons = {
            name: f"has no effect: {self.ineffective[name]}"
            for name in names & self.ineffective.keys()
        }
        if f"{EMBEDDER_PREFIX}MODEL_NAME" not in map(canonical_name, names):
            reason = f"has no effect without {EMBEDDER_PREFIX}MODEL_NAME"
            reasons |= dict.fromkeys(self._embedder_names & names, reason)
        for name in names - self.all_names.union(
            LIBRARY_VARIABLES, self.vllm_variables, self.ineffective, FOREIGN_OPTIONS
        ):
            if reason := self._explain_unknown_name(name):
                reasons[name] = reason
        return [(name, f"{name} {reason}") for name, reason in sorted(reasons.items())]

    def _explain_unknown_name(self, name: str) -> str:
        """Return the problem of an unknown variable; blank if it is likely another program's."""
        # OpenTelemetry's libraries read many variables, whose names resemble those of the settings.
        if name.startswith("OTEL_"):
            return ""
        bare = name.removeprefix(EMBEDDER_PREFIX)
        normalized = name.strip("-").replace("-", "_").upper()
        if bare != name and bare in self.worker_settings:
            return f"has no effect: {bare} applies to both engines"
        if reason := explain_removal(bare) or explain_removal(name.removeprefix("VLLM_")):
            return f"has no effect: {reason}"
        if release := history.find_first_release("options", bare):
            return f"has no effect: needs vLLM {release} or later"
        # Don't suggest other variables: they resemble many names that are not settings.
        libraries = {
            variable
            for variable in LIBRARY_VARIABLES | self.vllm_variables
            if variable.startswith(_LIBRARY_PREFIXES)
        }
        known = self.all_names - PLATFORM_SETTINGS
        suggestion = normalized if normalized in known else guess_setting(name, known | libraries)
        return f"is not a setting: did you mean {suggestion}?" if suggestion else ""

    def find_unknown_in_files(self, names: Iterable[str]) -> Iterator[Mistake]:
        """Yield a mistake for each canonical name in a settings file that is no setting."""
        known = {*self.worker_settings, *self.vllm_options, *OPTION_BY_SETTING, *SPECULATIVE_KEYS}
        known |= {EMBEDDER_PREFIX + name for name in known}
        known |= FOREIGN_OPTIONS | self.ineffective.keys()
        for name in set(names) - known:
            if name in LIBRARY_VARIABLES:
                yield Mistake(name, "...", "only the environment can set it")
            elif not explain_removal(name):
                suggestion = guess_setting(name, known)
                advice = f"no setting: did you mean {suggestion}?" if suggestion else "no setting"
                # The value may be a secret.
                yield Mistake(name, "...", advice)
