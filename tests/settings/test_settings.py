"""Every setting that was ever documented, and its effect on the engine or the worker."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm.envs
from pydantic import SecretStr
from support import ROOT
from support.settings import read_settings

from worker import start
from worker.engine.machine import Gpu, Machine
from worker.settings import Settings, names

# The table of the documentation, and the arguments of its docker build.
DOCUMENTED = """
    MODEL_NAME MODEL_REVISION MAX_MODEL_LEN BASE_PATH LOAD_FORMAT HF_TOKEN QUANTIZATION
    TRUST_REMOTE_CODE SEED KV_CACHE_DTYPE DTYPE TOKENIZER_NAME TOKENIZER_REVISION
    CUSTOM_CHAT_TEMPLATE GPU_MEMORY_UTILIZATION MAX_PARALLEL_LOADING_WORKERS BLOCK_SIZE SWAP_SPACE
    ENFORCE_EAGER MAX_CONTEXT_LEN_TO_CAPTURE DISABLE_CUSTOM_ALL_REDUCE DEFAULT_BATCH_SIZE
    DEFAULT_MIN_BATCH_SIZE DEFAULT_BATCH_SIZE_GROWTH_FACTOR RAW_OPENAI_OUTPUT
    OPENAI_SERVED_MODEL_NAME_OVERRIDE OPENAI_RESPONSE_ROLE MAX_CONCURRENCY DISABLE_LOG_STATS
    DISABLE_LOG_REQUESTS WORKER_CUDA_VERSION
"""
# The last worker before this one that had its engine in its own process.
IN_PROCESS = """
    VLLM_ATTENTION_BACKEND MIN_BATCH_SIZE BATCH_SIZE_GROWTH_FACTOR LORA_MODULES VLLM_CONFIG_FILE
    TRANSFORMERS_VERSION TENSORIZE TENSORIZER_NUM_GPUS TESTING_DOWNLOAD HF_HOME
    HUGGINGFACE_HUB_CACHE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE ENABLE_AUTO_TOOL_CHOICE
    TOOL_CALL_PARSER REASONING_PARSER TRUST_REQUEST_CHAT_TEMPLATE
    EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE RETURN_TOKENS_AS_TOKEN_IDS ENABLE_PROMPT_TOKENS_DETAILS
    ENABLE_FORCE_INCLUDE_USAGE ENABLE_LOG_OUTPUTS LOG_ERROR_STACK SPECULATIVE_CONFIG
    SPECULATIVE_METHOD SPECULATIVE_MODEL SPECULATIVE_MODEL_REVISION SPECULATIVE_QUANTIZATION
    SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE SPECULATIVE_MAX_MODEL_LEN
    SPECULATIVE_DISABLE_BY_BATCH_SIZE SPECULATIVE_ENFORCE_EAGER NUM_SPECULATIVE_TOKENS
    NGRAM_PROMPT_LOOKUP_MAX NGRAM_PROMPT_LOOKUP_MIN TOKENIZER TOKENIZER_MODE SKIP_TOKENIZER_INIT
    DOWNLOAD_DIR DISTRIBUTED_EXECUTOR_BACKEND PIPELINE_PARALLEL_SIZE TENSOR_PARALLEL_SIZE
    RAY_WORKERS_USE_NSIGHT ENABLE_PREFIX_CACHING DISABLE_SLIDING_WINDOW NUM_GPU_BLOCKS_OVERRIDE
    MAX_NUM_BATCHED_TOKENS MAX_NUM_SEQS MAX_LOGPROBS ENABLE_LORA MAX_LORAS MAX_LORA_RANK
    MAX_CPU_LORAS LORA_DTYPE FULLY_SHARDED_LORAS ENABLE_EXPERT_PARALLEL ATTENTION_BACKEND
    ASYNC_SCHEDULING STREAM_INTERVAL MODEL_LOADER_EXTRA_CONFIG ENABLE_CHUNKED_PREFILL MAX_LOG_LEN
    ENABLE_LOG_REQUESTS LIMIT_MM_PER_PROMPT VLLM_USE_DEEP_GEMM QUANTIZATION_PARAM_PATH
    GUIDED_DECODING_BACKEND WORKER_USE_RAY NUM_LOOKAHEAD_SLOTS ROPE_SCALING ROPE_THETA
    TOKENIZER_POOL_SIZE TOKENIZER_POOL_TYPE TOKENIZER_POOL_EXTRA_CONFIG LORA_EXTRA_VOCAB_SIZE
    LONG_LORA_SCALING_FACTORS MAX_SEQ_LEN_TO_CAPTURE PREEMPTION_MODE PREEMPTION_CHECK_PERIOD
    NUM_SCHEDULER_STEPS USE_V2_BLOCK_MANAGER SCHEDULER_DELAY_FACTOR DEVICE DISABLE_LOGGING_REQUEST
    VLLM_NIGHTLY
"""
# Settings of an earlier worker, which started a server of vLLM's.
WITH_A_SERVER = """
    HOST PORT API_KEY MODEL CONFIG HELP VLLM_PORT VLLM_BASE_URL VLLM_STARTUP_TIMEOUT
    REQUEST_TIMEOUT VLLM_EXTRA_ARGS SERVED_MODEL_NAME CUDA_GRAPH_SIZES
    GUIDED_DECODING_DISABLE_FALLBACK GUIDED_DECODING_DISABLE_ANY_WHITESPACE
    GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES OVERRIDE_POOLER_CONFIG TASK EPLB_WINDOW_SIZE
    EPLB_STEP_INTERVAL EPLB_LOG_BALANCEDNESS NUM_REDUNDANT_EXPERTS
"""

ON = """
    TRUST_REMOTE_CODE SKIP_TOKENIZER_INIT ENFORCE_EAGER DISABLE_CUSTOM_ALL_REDUCE ENABLE_LORA
    FULLY_SHARDED_LORAS ENABLE_AUTO_TOOL_CHOICE ENABLE_LOG_REQUESTS TRUST_REQUEST_CHAT_TEMPLATE
    EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE RETURN_TOKENS_AS_TOKEN_IDS ENABLE_PROMPT_TOKENS_DETAILS
    ENABLE_FORCE_INCLUDE_USAGE ENABLE_LOG_OUTPUTS RAY_WORKERS_USE_NSIGHT
    DISABLE_SLIDING_WINDOW ENABLE_EXPERT_PARALLEL
"""
OFF = "ENABLE_PREFIX_CACHING ENABLE_CHUNKED_PREFILL ASYNC_SCHEDULING"
SPECULATIVE: tuple[tuple[str, str, Any], ...] = (
    ("SPECULATIVE_METHOD", "method", "ngram"),
    ("SPECULATIVE_MODEL", "model", "org/draft"),
    ("SPECULATIVE_MODEL_REVISION", "revision", "v4"),
    ("SPECULATIVE_QUANTIZATION", "quantization", "awq"),
    ("SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE", "draft_tensor_parallel_size", 2),
    ("SPECULATIVE_MAX_MODEL_LEN", "max_model_len", 512),
    ("SPECULATIVE_ENFORCE_EAGER", "enforce_eager", True),
    ("NUM_SPECULATIVE_TOKENS", "num_speculative_tokens", 5),
    ("NGRAM_PROMPT_LOOKUP_MAX", "prompt_lookup_max", 4),
    ("NGRAM_PROMPT_LOOKUP_MIN", "prompt_lookup_min", 2),
)

# A value, the path of what it changes, and the result; <config> is a file with seed: 7.
EFFECTS: dict[str, tuple[str, str, Any]] = {
    "MODEL_NAME": ("org/other", "model", "org/other"),
    "MODEL": ("org/other", "model", "org/other"),
    "MODEL_REVISION": ("v2", "revision", "v2"),
    "MAX_MODEL_LEN": ("4k", "max_model_len", 4000),
    "BASE_PATH": ("/data", "settings.base_path", Path("/data")),
    "LOAD_FORMAT": ("safetensors", "load_format", "safetensors"),
    "HF_TOKEN": ("hf_x", "settings.hf_token", SecretStr("hf_x")),
    "QUANTIZATION": ("awq", "quantization", "awq"),
    "SEED": ("7", "seed", 7),
    "KV_CACHE_DTYPE": ("fp8", "kv_cache_dtype", "fp8"),
    "DTYPE": ("half", "dtype", "half"),
    "TOKENIZER": ("org/words", "tokenizer", "org/words"),
    "TOKENIZER_NAME": ("org/words", "tokenizer", "org/words"),
    "TOKENIZER_REVISION": ("v3", "tokenizer_revision", "v3"),
    "TOKENIZER_MODE": ("mistral", "tokenizer_mode", "mistral"),
    "CUSTOM_CHAT_TEMPLATE": ("{{ messages }}", "chat_template", "{{ messages }}"),
    "GPU_MEMORY_UTILIZATION": ("0.5", "gpu_memory_utilization", 0.5),
    "BLOCK_SIZE": ("32", "block_size", 32),
    "DEFAULT_BATCH_SIZE": ("20", "settings.default_batch_size", 20),
    "DEFAULT_MIN_BATCH_SIZE": ("2", "settings.default_min_batch_size", 2),
    "MIN_BATCH_SIZE": ("2", "settings.default_min_batch_size", 2),
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": ("1.5", "settings.default_batch_size_growth_factor", 1.5),
    "BATCH_SIZE_GROWTH_FACTOR": ("1.5", "settings.default_batch_size_growth_factor", 1.5),
    "RAW_OPENAI_OUTPUT": ("0", "settings.raw_openai_output", False),
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": ("mine", "served_model_name", ["mine", "org/model"]),
    "SERVED_MODEL_NAME": ("mine", "served_model_name", ["mine", "org/model"]),
    "OPENAI_RESPONSE_ROLE": ("bot", "response_role", "bot"),
    "MAX_CONCURRENCY": ("7", "settings.max_concurrency", 7),
    "DISABLE_LOG_STATS": ("0", "settings.disable_log_stats", False),
    "DISABLE_LOG_REQUESTS": ("0", "enable_log_requests", True),
    "DISABLE_LOGGING_REQUEST": ("0", "enable_log_requests", True),
    "MAX_LOG_LEN": ("100", "max_log_len", 100),
    "VLLM_CONFIG_FILE": ("<config>", "seed", 7),
    "VLLM_EXTRA_ARGS": ("--seed 7", "seed", 7),
    "ATTENTION_BACKEND": ("FLASH_ATTN", "attention_backend", "FLASH_ATTN"),
    "VLLM_ATTENTION_BACKEND": ("FLASH_ATTN", "attention_backend", "FLASH_ATTN"),
    "LORA_MODULES": ("a=org/a", "lora_modules.0.path", "org/a"),
    "MAX_LORAS": ("4", "max_loras", 4),
    "MAX_LORA_RANK": ("32", "max_lora_rank", 32),
    "MAX_CPU_LORAS": ("8", "max_cpu_loras", 8),
    "LORA_DTYPE": ("bfloat16", "lora_dtype", "bfloat16"),
    "TOOL_CALL_PARSER": ("hermes", "tool_call_parser", "hermes"),
    "REASONING_PARSER": ("qwen3", "reasoning_parser", "qwen3"),
    "SPECULATIVE_CONFIG": ('{"method": "suffix"}', "speculative_config.method", "suffix"),
    "DOWNLOAD_DIR": ("/models", "download_dir", "/models"),
    "DISTRIBUTED_EXECUTOR_BACKEND": ("mp", "distributed_executor_backend", "mp"),
    "PIPELINE_PARALLEL_SIZE": ("2", "pipeline_parallel_size", 2),
    "TENSOR_PARALLEL_SIZE": ("2", "tensor_parallel_size", 2),
    "NUM_GPU_BLOCKS_OVERRIDE": ("64", "num_gpu_blocks_override", 64),
    "MAX_NUM_BATCHED_TOKENS": ("2K", "max_num_batched_tokens", 2048),
    "MAX_NUM_SEQS": ("16", "max_num_seqs", 16),
    "MAX_LOGPROBS": ("5", "max_logprobs", 5),
    "STREAM_INTERVAL": ("4", "stream_interval", 4),
    "LIMIT_MM_PER_PROMPT": ("image=1,video=0", "limit_mm_per_prompt", {"image": 1, "video": 0}),
    "MODEL_LOADER_EXTRA_CONFIG": ('{"a": 1}', "model_loader_extra_config", {"a": 1}),
    **{name: (str(given), f"speculative_config.{key}", given) for name, key, given in SPECULATIVE},
    **{name: ("1", name.lower(), True) for name in ON.split()},
    **{name: ("0", name.lower(), False) for name in OFF.split()},
}
LORA = "MAX_LORAS MAX_LORA_RANK MAX_CPU_LORAS LORA_DTYPE FULLY_SHARDED_LORAS LORA_MODULES"
DRAFTED = [name for name, _, _ in SPECULATIVE]
# Settings without which another has no effect, or is refused.
NEEDED = {
    "MODEL": {"MODEL_NAME": ""},
    "ENABLE_AUTO_TOOL_CHOICE": {"TOOL_CALL_PARSER": "hermes"},
    "TOOL_CALL_PARSER": {"ENABLE_AUTO_TOOL_CHOICE": "1"},
    "ENABLE_LOG_OUTPUTS": {"ENABLE_LOG_REQUESTS": "1"},
    "MAX_LOG_LEN": {"ENABLE_LOG_REQUESTS": "1"},
    **{name: {"ENABLE_LORA": "1"} for name in LORA.split()},
    **{name: {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "3"} for name in DRAFTED},
}

# Left to the libraries that read them: what is written, whose constant it is, and its value.
LIBRARIES = {
    "HF_HOME": ("/hf", "HF_HUB_CACHE", "/hf/hub"),
    "HUGGINGFACE_HUB_CACHE": ("/cache", "HF_HUB_CACHE", "/cache"),
    "HF_HUB_OFFLINE": ("1", "HF_HUB_OFFLINE", "True"),
    "TRANSFORMERS_OFFLINE": ("1", "HF_HUB_OFFLINE", "True"),
}
OF_VLLM = {"VLLM_USE_DEEP_GEMM": ("0", False), "VLLM_PORT": ("8123", 8123)}
# Set by other software for itself.
PASSED_OVER = {"HOST", "PORT", "CONFIG", "HELP"}

# Removed settings, by the first release of vLLM without them.
GONE_SINCE = {
    "0.6": "MAX_CONTEXT_LEN_TO_CAPTURE",
    "0.7": "QUANTIZATION_PARAM_PATH WORKER_USE_RAY",
    "0.8": "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
    "0.10": """
        TOKENIZER_POOL_SIZE TOKENIZER_POOL_TYPE TOKENIZER_POOL_EXTRA_CONFIG
        LONG_LORA_SCALING_FACTORS NUM_SCHEDULER_STEPS USE_V2_BLOCK_MANAGER DEVICE
    """,
    "0.11": "ROPE_SCALING ROPE_THETA MAX_SEQ_LEN_TO_CAPTURE PREEMPTION_MODE SCHEDULER_DELAY_FACTOR",
    "0.12": """
        GUIDED_DECODING_BACKEND GUIDED_DECODING_DISABLE_FALLBACK NUM_LOOKAHEAD_SLOTS
        GUIDED_DECODING_DISABLE_ANY_WHITESPACE GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES
        LORA_EXTRA_VOCAB_SIZE OVERRIDE_POOLER_CONFIG EPLB_WINDOW_SIZE EPLB_STEP_INTERVAL
        EPLB_LOG_BALANCEDNESS NUM_REDUNDANT_EXPERTS
    """,
    "0.13": "CUDA_GRAPH_SIZES TASK",
    "0.18": "SWAP_SPACE",
}
GONE = {
    name: f"vLLM has had no such option since {release}; "
    for release, listed in GONE_SINCE.items()
    for name in listed.split()
} | {
    "API_KEY": "the platform checks keys; SERVE_API_KEY",
    "LOG_ERROR_STACK": "vLLM's server runs inside the worker",
    "MAX_PARALLEL_LOADING_WORKERS": "vLLM itself ignores it",
    "PREEMPTION_CHECK_PERIOD": "vLLM's scheduler needs no such choice any more",
    "REQUEST_TIMEOUT": "the endpoint's execution timeout",
    "TENSORIZE": "a model in that form loads with",
    "TENSORIZER_NUM_GPUS": "a model in that form loads with",
    "TESTING_DOWNLOAD": "--check tells where a model would come from",
    "TRANSFORMERS_VERSION": "the image is built with one version of each library",
    "VLLM_BASE_URL": "the engine runs inside the worker",
    "VLLM_NIGHTLY": "the image is built with one version of each library",
    "VLLM_STARTUP_TIMEOUT": "VLLM_ENGINE_READY_TIMEOUT_S",
    "WORKER_CUDA_VERSION": "the image is built with one version of each library",
}
NAME = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
NAMES = {*f"{DOCUMENTED} {IN_PROCESS} {WITH_A_SERVER}".split()}


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the environment, and restore it afterwards."""
    before = dict(os.environ)
    for name in os.environ.keys() - {"PATH", "HOME"}:
        monkeypatch.delenv(name)
    yield
    os.environ.clear()
    os.environ.update(before)


def read(**settings: str) -> start.Start:
    """Read settings from the process's environment, as a worker with four cards does."""
    os.environ.update({"MODEL_NAME": "org/model", **settings})
    return read_settings(os.environ, Machine(cpu=False, gpus=(Gpu("card", 80 << 30),) * 4))


def effect(of: Any, path: str) -> Any:
    """Follow a path from the start that was read, or from vLLM's arguments."""
    steps = (path if path.startswith("settings.") else f"arguments.vllm.{path}").split(".")

    def follow(held: Any, step: str) -> Any:
        if isinstance(held, dict):
            return held.get(step)
        if isinstance(held, list):
            return held[int(step)]
        return getattr(held, step, None)

    return functools.reduce(follow, steps, of)


def test_every_documented_name_has_a_row() -> None:
    assert {*EFFECTS, *LIBRARIES, *OF_VLLM, *GONE, *PASSED_OVER} >= NAMES


@pytest.mark.parametrize("name", EFFECTS)
def test_a_setting_has_its_effect_and_no_warning(name: str, tmp_path: Path) -> None:
    value, path, effective = EFFECTS[name]
    (tmp_path / "config").write_text("seed: 7")
    value = value.replace("<config>", str(tmp_path / "config"))
    without = read()
    result = read(**{**NEEDED.get(name, {}), name: value})
    assert effect(result, path) == effective != effect(without, path)
    assert result.warnings == ()


@pytest.mark.parametrize("name", GONE)
def test_a_removed_setting_warns_since_when_or_what_replaces_it(name: str) -> None:
    (warning,) = read(**{name: "1"}).warnings
    assert warning.startswith(f"{name} has no effect: {GONE[name]}")
    assert not warning.endswith((": ", "; "))


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_setting_of_the_hubs_library_reaches_it(name: str) -> None:
    value, constant, effective = LIBRARIES[name]
    script = (
        "from worker.settings import Settings; Settings.from_env({'MODEL_NAME': 'm'}).export();"
        f"from huggingface_hub import constants; print(constants.{constant})"
    )

    def constant_in(**environ: str) -> str:
        command = [sys.executable, "-c", script]
        return subprocess.check_output(
            command, env={"PYTHONPATH": str(ROOT / "src"), **environ}, text=True
        )

    assert constant_in(**{name: value}).strip() == effective != constant_in().strip()
    assert read(**{name: value}).warnings == ()


@pytest.mark.parametrize("name", OF_VLLM)
def test_a_variable_of_vllms_own_reaches_it(name: str) -> None:
    value, effective = OF_VLLM[name]
    default = getattr(vllm.envs, name)
    assert read(**{name: value}).warnings == ()
    assert getattr(vllm.envs, name) == effective != default


def test_variables_of_other_software_are_ignored() -> None:
    read()  # exports variables, so that both reads below see the same environment
    result, without = read(**dict.fromkeys(PASSED_OVER, "1")), read()
    assert (result.arguments, result.warnings) == (without.arguments, ())


def test_settings_that_a_warning_advises_exist() -> None:
    settings = {*read().options, *names.ALIASES, *map(str.upper, Settings.model_fields)}
    advised = {name for advice in names.REMOVED.values() for name in NAME.findall(advice)}
    assert advised - settings - {*vllm.envs.environment_variables} == set()
    assert len(advised) > 10
