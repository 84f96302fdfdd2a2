"""Reads and writes the process's environment; no other module does."""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Values for variables that libraries read, where the operator left them unset.
EXPORTS = {
    # The SDK's own default, DEBUG, prints every chunk of every answer.
    "RUNPOD_LOG_LEVEL": "INFO",
    # The SDK's GPU checks would create a second CUDA context, and its network check needs the
    # internet; the worker registers its own check instead: a generated token.
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    # Standard output is for the worker's own output: the yields of a local run.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Looking up where to send usage statistics would delay the start of an offline worker.
    "VLLM_NO_USAGE_STATS": "1",
}

HUB_TOKEN = "HF_TOKEN"
SDK_KEY = "RUNPOD_AI_API_KEY"
# Of Weights & Biases.
WANDB_KEY = "WANDB_API_KEY"
# Variables that hold secrets, with the names that operators use by mistake.
SECRETS = (
    HUB_TOKEN,
    SDK_KEY,
    "SERVE_API_KEY",
    "BATCH_API_KEY",
    "RUNPOD_API_KEY",
    *("HUGGING_FACE_HUB_TOKEN", "HUGGING_FACE_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACE_API_KEY"),
    *("HF_API_TOKEN", "VLLM_API_KEY", "API_KEY"),
    WANDB_KEY,
)

# How many threads a library starts, and where: chosen for the engine, which computes beside.
THREADS = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

# Paths among other words: in quotes they may have any character.
_PATHS = re.compile(r""""(/[^"]+)"|([/~$][^\s"',:;=]*)""")

# Those that were taken out of the environment.
_taken: dict[str, str] = {}


@dataclass(frozen=True)
class Default:
    """A value that the worker chose for a setting that the operator left unset, and why."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.reason})"


def process_environ() -> Mapping[str, str]:
    """Return the process's environment: what the operator set, and what was exported since."""
    return os.environ


def given_environ() -> Mapping[str, str]:
    """Return the process's environment with the secrets that were taken out of it."""
    return {**_taken, **os.environ}


def take_secrets() -> list[str]:
    """Take the secrets out of the environment, so that no child has them; return their values.

    Call this before the first thread.
    """
    find = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_void_p
    for name in SECRETS:
        if value := os.environ.get(name):
            _taken[name] = value
            # The variables that a process was started with stay in its memory when they are unset,
            # where /proc/<pid>/environ shows them, also of each process that is forked from it.
            if place := find(name.encode()):
                ctypes.memset(place, ord("*"), len(os.fsencode(value)))
            del os.environ[name]
    return [*_taken.values()]


def give_sdk_its_key() -> None:
    """Let the SDK read the platform's key, where processes that are started anew don't see it."""
    if key := _taken.get(SDK_KEY):
        os.environ[SDK_KEY] = key
        # Of the environment that children inherit, not of the mapping that Python reads.
        os.unsetenv(SDK_KEY)


def remove(name: str) -> None:
    """Remove a variable, if it is set."""
    os.environ.pop(name, None)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in SECRETS}


def trainers_environ(*, wandb: bool) -> dict[str, str]:
    """Return the environment of a process that trains: offline, on all cores, with no secrets.

    With ``wandb`` it has the key of Weights & Biases, if there is one.
    """
    environ = without_secrets(os.environ)
    for name in THREADS:
        environ.pop(name, None)
    # Threads that spin while they wait would take the engine's time.
    environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    # The first GPU is then the one whose memory was asked for: the driver's tool counts them so.
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if wandb and WANDB_KEY in _taken:
        environ[WANDB_KEY] = _taken[WANDB_KEY]
    return environ


def first_gpu() -> str | None:
    """Return the number or the id of a process's first GPU; None: it is the machine's first."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or None


def export(values: Mapping[str, str]) -> dict[str, str]:
    """Write variables that are unset or blank; return those that were written."""
    left_open = {name: value for name, value in values.items() if not is_set(name)}
    os.environ.update(left_open)
    return left_open


def overwrite(name: str, value: str) -> None:
    """Write a variable even if it is set: for those that vLLM itself changes."""
    os.environ[name] = value


def is_set(name: str) -> bool:
    """True if a variable is set to more than blanks."""
    return bool(os.environ.get(name, "").strip())


def queue_around() -> bool:
    """True if the environment tells the SDK where to take jobs, and it will."""
    return "RUNPOD_WEBHOOK_GET_JOB" in os.environ and not port_around()


def port_around() -> bool:
    """True if the environment tells the SDK a port to serve, in place of a queue."""
    return os.environ.get("RUNPOD_REALTIME_PORT", "0") != "0"


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory of the hub's cache, by the rules of the hub's library."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if place := environ.get(name, "").strip():
            return _expanded(place) / below
    return _expanded(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def paths_in(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the paths in the values of variables: of models, caches, adapters and whatever else.

    A value may be a path, or have some among other words, as a list or JSON. The hub's library
    and vLLM take relative paths, too. Where callers' files are, and the shell's own directories,
    are left out.
    """
    found: set[Path] = set()
    for name, value in environ.items():
        if "/" in value and "\0" not in value and not name.startswith(("FILES_", "PWD", "OLDPWD")):
            several = (quoted or plain for quoted, plain in _PATHS.findall(value))
            found |= {Path.cwd() / _expanded(text) for text in (value.strip(), *several)}
    return tuple(found)


def _expanded(place: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(place)))  # noqa: PTH111 - of "~x", which nobody is, pathlib raises
