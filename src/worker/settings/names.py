"""The names of settings: aliases and removed ones, and checks of the names that are set."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from worker.settings import history
from worker.settings.mistakes import Mistake

# Settings whose value goes to an option of vLLM that has another name.
ALIASES = {
    "MODEL_NAME": "MODEL",
    "MODEL_REVISION": "REVISION",
    "TOKENIZER_NAME": "TOKENIZER",
    "CUSTOM_CHAT_TEMPLATE": "CHAT_TEMPLATE",
    "OPENAI_RESPONSE_ROLE": "RESPONSE_ROLE",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "SERVED_MODEL_NAME",
}

# Other names of settings: vLLM's own, and those of earlier workers.
SPELLINGS = {option: name for name, option in ALIASES.items()} | {
    "MIN_BATCH_SIZE": "DEFAULT_MIN_BATCH_SIZE",
    "BATCH_SIZE_GROWTH_FACTOR": "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
    "DISABLE_LOGGING_REQUEST": "DISABLE_LOG_REQUESTS",
    "HUGGING_FACE_HUB_TOKEN": "HF_TOKEN",
    "VLLM_ATTENTION_BACKEND": "ATTENTION_BACKEND",
}

# Aliases with the opposite meaning: ENABLE_X=1 is DISABLE_X=0.
OPPOSITES = {"ENABLE_LOG_REQUESTS": "DISABLE_LOG_REQUESTS"}

# Variables that were replaced by SPECULATIVE_CONFIG, and its keys.
SPECULATIVE = {
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

_BY_BATCH = "CUDA graphs are captured by batch size; MAX_CUDAGRAPH_CAPTURE_SIZE bounds it"
_SCHEDULER = "vLLM's scheduler needs no such choice any more"
_GUIDED = 'set STRUCTURED_OUTPUTS_CONFIG, for example to {"backend": "xgrammar"}'
_ROPE = "set it in HF_OVERRIDES, under the name that the model's config.json has for it"
_EPLB = "set EPLB_CONFIG"
_RAY = "set DISTRIBUTED_EXECUTOR_BACKEND=ray"
_POOL = "RENDERER_NUM_WORKERS is the number of threads that tokenize"
_PROMPT_ADAPTERS = "prompt adapters have gone from vLLM; adapters are LoRAs (ENABLE_LORA)"
_SPECULATIVE = "set it in SPECULATIVE_CONFIG"
_BUILD = "the image is built with one version of each library, which vLLM's release decides"

# Settings that are accepted without effect, and what replaces them.
REMOVED = {
    "API_KEY": "the platform checks keys; SERVE_API_KEY is the key with --serve",
    "CALCULATE_KV_SCALES": "scales of an FP8 KV cache are read from the checkpoint",
    "CUDA_GRAPH_SIZES": "set CUDAGRAPH_CAPTURE_SIZES",
    "DEVICE": "the installed build of vLLM decides",
    "DISABLE_ASYNC_OUTPUT_PROC": "outputs are processed while the next step runs; "
    "ASYNC_SCHEDULING=0 turns off what is left of it",
    "DISABLE_MM_PREPROCESSOR_CACHE": "set MM_PROCESSOR_CACHE_GB=0",
    "ENABLE_PROMPT_ADAPTER": _PROMPT_ADAPTERS,
    "ENABLE_REASONING": "REASONING_PARSER alone turns it on",
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
    "LONG_LORA_SCALING_FACTORS": "adapters bring their own scaling",
    "LORA_EXTRA_VOCAB_SIZE": "adapters can't add tokens to the vocabulary any more",
    "MAX_CONTEXT_LEN_TO_CAPTURE": _BY_BATCH,
    "MAX_LONG_PARTIAL_PREFILLS": _SCHEDULER,
    "MAX_NUM_PARTIAL_PREFILLS": _SCHEDULER,
    "MAX_PROMPT_ADAPTERS": _PROMPT_ADAPTERS,
    "MAX_PROMPT_ADAPTER_TOKEN": _PROMPT_ADAPTERS,
    "MAX_SEQ_LEN_TO_CAPTURE": _BY_BATCH,
    "MULTI_STEP_STREAM_OUTPUTS": "STREAM_INTERVAL groups tokens",
    "NUM_LOOKAHEAD_SLOTS": _SCHEDULER,
    "NUM_REDUNDANT_EXPERTS": _EPLB,
    "NUM_SCHEDULER_STEPS": "ASYNC_SCHEDULING=1 prepares the next step while this one runs",
    "OVERRIDE_POOLER_CONFIG": "set POOLER_CONFIG",
    "PREEMPTION_CHECK_PERIOD": _SCHEDULER,
    "PREEMPTION_CPU_CAPACITY": _SCHEDULER,
    "PREEMPTION_MODE": _SCHEDULER,
    "QUANTIZATION_PARAM_PATH": "scales of an FP8 KV cache are read from the checkpoint",
    "REQUEST_TIMEOUT": "the endpoint's execution timeout bounds a job",
    "ROPE_SCALING": _ROPE,
    "ROPE_THETA": _ROPE,
    "SCHEDULER_DELAY_FACTOR": _SCHEDULER,
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "drafts are made whatever the size of a batch",
    "SPEC_DECODING_ACCEPTANCE_METHOD": _SPECULATIVE,
    "SWAP_SPACE": "CPU_OFFLOAD_GB offloads weights, KV_OFFLOADING_SIZE the KV cache",
    "TASK": "set RUNNER (generate, pooling) and CONVERT (embed, classify)",
    "TENSORIZE": "a model in that form loads with LOAD_FORMAT=tensorizer",
    "TENSORIZER_NUM_GPUS": "a model in that form loads with LOAD_FORMAT=tensorizer",
    "TESTING_DOWNLOAD": "--check tells where a model would come from",
    "TOKENIZER_POOL_EXTRA_CONFIG": _POOL,
    "TOKENIZER_POOL_SIZE": _POOL,
    "TOKENIZER_POOL_TYPE": _POOL,
    "TRANSFORMERS_VERSION": _BUILD,
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": _SPECULATIVE,
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": _SPECULATIVE,
    "USE_V2_BLOCK_MANAGER": _SCHEDULER,
    "VLLM_BASE_URL": "the engine runs inside the worker, and there is no server to reach",
    "VLLM_NIGHTLY": _BUILD,
    "VLLM_USE_V1": "vLLM has one engine left, which it chose",
    "VLLM_STARTUP_TIMEOUT": "VLLM_ENGINE_READY_TIMEOUT_S bounds the start of the engine",
    "WORKER_CUDA_VERSION": _BUILD,
    "WORKER_USE_RAY": _RAY,
}

# Variables of libraries that operators set together with settings.
FOR_LIBRARIES = frozenset(
    """
    CUDA_VISIBLE_DEVICES HF_ENDPOINT HF_HOME HF_HUB_CACHE HF_HUB_DISABLE_XET HF_HUB_OFFLINE
    HF_XET_HIGH_PERFORMANCE HUGGINGFACE_HUB_CACHE OMP_NUM_THREADS RUNPOD_INIT_TIMEOUT
    RUNPOD_LOG_LEVEL TRANSFORMERS_OFFLINE
    """.split()
)

# Options of vLLM that a worker does not take; other programs use variables of these names, too.
FOREIGN = frozenset({"CONFIG", "HELP", "HOST", "MODEL_TAG", "PORT", "PORT_HEALTH"})

# Common wrong names that are not similar to the right one.
MEANT = {
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

# A name at least this similar to a known one is a misspelling (difflib's ratio, 0 to 1).
NEAR_MISS = 0.86

_PREFIXES = ("HF_", "RUNPOD_", "VLLM_")

# Prefix of the names of an embedder's settings.
EMBEDDER = "EMBEDDING_"


def canonical(name: str) -> str:
    """Return the canonical name of a setting, given any of its names."""
    bare = name.removeprefix(EMBEDDER)
    if bare in SPELLINGS:
        return name.removesuffix(bare) + SPELLINGS[bare]
    return name


def removed(name: str) -> str | None:
    """Return since when a setting has no effect and what replaces it; None if it never was one."""
    removal = history.removal("options", name)
    if name not in REMOVED and not removal:
        return None
    since = f"vLLM has had no such option since {removal.since}" if removal else ""
    return "; ".join(filter(None, (since, REMOVED.get(name))))


def meant(name: str, names: Iterable[str]) -> str | None:
    """Guess which setting an unknown name was meant to be."""
    names = set(names)
    if name in MEANT:
        return MEANT[name]
    # vLLM's own variables begin so, its options don't.
    if (without := name.removeprefix("VLLM_")) != name and without in names:
        return without
    near = difflib.get_close_matches(name, names, n=1, cutoff=NEAR_MISS)
    return near[0] if near else None


@dataclass(frozen=True)
class Names:
    """The names of the worker's own settings, of vLLM's options and of variables that vLLM reads.

    ``idle`` has those of settings that have no effect, each with the reason.
    """

    own: frozenset[str]
    options: frozenset[str]
    idle: Mapping[str, str]
    variables: frozenset[str]

    @cached_property
    def settings(self) -> set[str]:
        """Names of all settings, in any spelling."""
        return {*self._of_engines, *self._of_embedders, *OPPOSITES, *self.own}

    @cached_property
    def _of_engines(self) -> set[str]:
        """Names of settings that each engine has, in any spelling."""
        return {*self.options, *SPELLINGS, *SPECULATIVE} - self.own | ALIASES.keys()

    @cached_property
    def _of_embedders(self) -> set[str]:
        return {EMBEDDER + name for name in self._of_engines}

    def problems(
        self, written: Iterable[str], in_files: Iterable[str]
    ) -> tuple[list[Mistake], list[tuple[str, str]]]:
        """Find names that are no settings, and settings that have no effect.

        The names of all variables are as they are spelled, those in files canonical. Return
        mistakes in files, and warnings, each with the name that it is about.
        """
        given = set(written)
        found = {name: f"has no effect: {self.idle[name]}" for name in given & self.idle.keys()}
        if f"{EMBEDDER}MODEL_NAME" not in map(canonical, given):
            reason = f"has no effect without {EMBEDDER}MODEL_NAME"
            found |= dict.fromkeys(self._of_embedders & given, reason)
        for name in given - self.settings.union(FOR_LIBRARIES, self.variables, self.idle, FOREIGN):
            if reason := self._unknown(name):
                found[name] = reason
        warnings = [(name, f"{name} {reason}") for name, reason in sorted(found.items())]
        return [*self._unknown_in_files(in_files)], warnings

    def _unknown(self, name: str) -> str:
        """Say what is wrong with an unknown variable; blank if it is none of the worker's."""
        bare = name.removeprefix(EMBEDDER)
        upper = name.strip("-").replace("-", "_").upper()
        if bare != name and bare in self.own:
            return f"has no effect: {bare} holds for both engines"
        if why := removed(bare) or removed(name.removeprefix("VLLM_")):
            return f"has no effect: {why}"
        if first := history.first_release("options", bare):
            return f"has no effect: vLLM has it from {first} on"
        # Other variables of libraries resemble many names that are not settings.
        libraries = {
            variable
            for variable in FOR_LIBRARIES | self.variables
            if variable.startswith(_PREFIXES)
        }
        right = upper if upper in self.settings else meant(name, self.settings | libraries)
        return f"is not a setting: did you mean {right}?" if right else ""

    def _unknown_in_files(self, names: Iterable[str]) -> Iterator[Mistake]:
        """Check the names that files set: unlike the environment, a file is for the worker only."""
        known = {*self.own, *self.options, *ALIASES, *SPECULATIVE}
        known |= {EMBEDDER + name for name in known} | FOREIGN | self.idle.keys()
        for name in set(names) - known:
            if name in FOR_LIBRARIES:
                yield Mistake(name, "...", "only the environment can set it")
            elif not removed(name):
                right = meant(name, known)
                advice = f"no setting: did you mean {right}?" if right else "no setting"
                # The value may be anything, also a secret.
                yield Mistake(name, "...", advice)
