"""Reads and writes the process's environment; other modules must not access it directly."""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Defaults for environment variables that libraries read; values set by the operator override them.
LIBRARY_DEFAULTS = {
    # With the SDK's own default, DEBUG, it prints every chunk of every response.
    "RUNPOD_LOG_LEVEL": "INFO",
    # The SDK's check of GPUs would create a second CUDA context, and since version 2.0 it ends a
    # worker whose engine has filled the GPU. Its network check needs the internet. The worker
    # registers its own check instead, which generates a token.
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    # Standard output is reserved for the worker's own output: the results of a local run.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Looking up where to send usage statistics would delay the startup of an offline worker.
    "VLLM_NO_USAGE_STATS": "1",
}

# Variables with the keys of Hugging Face's hub, RunPod's SDK, and Weights & Biases.
HUB_TOKEN = "HF_TOKEN"
SDK_KEY = "RUNPOD_AI_API_KEY"
WANDB_KEY = "WANDB_API_KEY"
# Variable with the headers, often with a key, of the receiver of metrics.
OTLP_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
# Environment variables with secrets, including names that operators set by mistake.
SECRET_VARIABLES = (
    HUB_TOKEN,
    SDK_KEY,
    "SERVE_API_KEY",
    "BATCH_API_KEY",
    "RUNPOD_API_KEY",
    *("HUGGING_FACE_HUB_TOKEN", "HUGGING_FACE_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACE_API_KEY"),
    *("HF_API_TOKEN", "VLLM_API_KEY", "API_KEY"),
    WANDB_KEY,
    OTLP_HEADERS,
)

# Variables with the number and the CPUs of a library's threads, which suit only the engine.
THREAD_ENV = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

# Paths within other text; a path in quotes may contain any character.
_PATH_PATTERN = re.compile(r""""(/[^"]+)"|([/~$][^\s"',:;=]*)""")

# Secrets removed from the environment, by variable name.
_secrets: dict[str, str] = {}


@dataclass(frozen=True)
class ChosenDefault:
    """A value that the worker chose for a setting that the operator left unset, with the reason."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.reason})"


def process_environ() -> Mapping[str, str]:
    """Return the process's environment, including variables that the worker has set."""
    return os.environ


def environ_with_secrets() -> Mapping[str, str]:
    """Return the process's environment plus the secrets that ``pop_secrets`` removed."""
    return {**_secrets, **os.environ}


def pop_secrets() -> list[str]:
    """Remove the secrets from the environment, which children inherit, and return their values.

    Call this before the first thread starts.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    for name in SECRET_VARIABLES:
        if value := os.environ.get(name):
            _secrets[name] = value
            # Unsetting a variable leaves its original value in the memory that /proc/<pid>/environ
            # displays, for this process and for every process forked from it.
            if address := getenv(name.encode()):
                ctypes.memset(address, ord("*"), len(os.fsencode(value)))
            del os.environ[name]
    return [*_secrets.values()]


def restore_sdk_key() -> None:
    """Make the platform's key visible to the SDK, but not to child processes."""
    if key := _secrets.get(SDK_KEY):
        os.environ[SDK_KEY] = key
        # Unset only in the environment that children inherit: Python's mapping keeps the key.
        os.unsetenv(SDK_KEY)


def unset_variable(name: str) -> None:
    os.environ.pop(name, None)


def environ_without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in SECRET_VARIABLES}


def trainer_environ(*, wandb: bool) -> dict[str, str]:
    """Return the environment for a training process: offline, and without other programs' secrets.

    The variables in ``THREAD_ENV`` are left out. ``wandb`` adds Weights & Biases' API key, if set.
    """
    environ = environ_without_secrets(os.environ)
    for name in THREAD_ENV:
        environ.pop(name, None)
    # Threads that spin while they wait would use CPU time that the engine needs.
    environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    # nvidia-smi uses this order, too, so the first GPU is the one whose memory was checked.
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if wandb and WANDB_KEY in _secrets:
        environ[WANDB_KEY] = _secrets[WANDB_KEY]
    return environ


def first_visible_gpu() -> str | None:
    """Return the number or id of the first GPU in ``CUDA_VISIBLE_DEVICES``; None if it is unset."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or None


def set_unset_variables(values: Mapping[str, str]) -> dict[str, str]:
    """Set variables that are unset or blank, and return the variables that were set."""
    unset = {name: value for name, value in values.items() if not is_variable_set(name)}
    os.environ.update(unset)
    return unset


def set_variable(name: str, value: str) -> None:
    """Set a variable, even if it is already set; meant for variables that vLLM itself changes."""
    os.environ[name] = value


def is_variable_set(name: str) -> bool:
    """Return whether a variable is set to a value that is not blank."""
    return bool(os.environ.get(name, "").strip())


def has_job_queue() -> bool:
    """Return whether the environment names a job queue that the SDK will poll."""
    return "RUNPOD_WEBHOOK_GET_JOB" in os.environ and not has_realtime_port()


def has_realtime_port() -> bool:
    """Return whether the environment makes the SDK serve a port instead of polling a queue."""
    return os.environ.get("RUNPOD_REALTIME_PORT", "0") != "0"


def hub_cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the Hugging Face cache, by the same rules as ``huggingface_hub``."""
    for name, folder in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if path := environ.get(name, "").strip():
            return _expand_path(path) / folder
    return _expand_path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def find_paths_in_variables(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the paths in the values of variables, such as models, caches and adapters.

    A value may be a path, or contain paths within other text, such as a list or JSON. Relative
    values are included because ``huggingface_hub`` and vLLM accept relative paths.
    """
    paths: set[Path] = set()
    for name, value in environ.items():
        if "/" in value and "\0" not in value and not name.startswith(("FILES_", "PWD", "OLDPWD")):
            matches = (quoted or plain for quoted, plain in _PATH_PATTERN.findall(value))
            paths |= {Path.cwd() / _expand_path(text) for text in (value.strip(), *matches)}
    return tuple(paths)


def _expand_path(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))  # noqa: PTH111 - pathlib raises for "~x" if there is no user x
