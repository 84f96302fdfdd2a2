"""Reads and writes the process's environment; no other module does."""

import os
from collections.abc import Mapping, MutableMapping
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


def export(
    values: Mapping[str, str], environ: MutableMapping[str, str] = os.environ
) -> dict[str, str]:
    """Write variables that are unset or blank; return those that were written."""
    left_open = {name: value for name, value in values.items() if not is_set(name, environ)}
    environ.update(left_open)
    return left_open


def overwrite(name: str, value: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Write a variable even if it is set: for those that vLLM itself changes."""
    environ[name] = value


def is_set(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """True if a variable is set to more than blanks."""
    return bool(environ.get(name, "").strip())


def queue_around(environ: Mapping[str, str] = os.environ) -> bool:
    """True if the environment tells the SDK where to take jobs, and it will."""
    return "RUNPOD_WEBHOOK_GET_JOB" in environ and not _realtime(environ)


def platform_around(environ: Mapping[str, str] = os.environ) -> bool:
    """True if the environment tells the SDK where to take jobs, or a port to serve."""
    return "RUNPOD_WEBHOOK_GET_JOB" in environ or _realtime(environ)


def _realtime(environ: Mapping[str, str]) -> bool:
    return environ.get("RUNPOD_REALTIME_PORT", "0") != "0"


def log_format(environ: Mapping[str, str] = os.environ) -> str:
    """Return the format of the log, which is needed before settings are read; blank if unset."""
    return environ.get("LOG_FORMAT", "").strip()


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the hub's cache, by the rules of the hub's library."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if is_set(name, environ):
            return _expanded(environ[name].strip()) / below
    return _expanded(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _expanded(place: str) -> Path:
    return Path(os.path.expandvars(Path(place).expanduser()))
