"""A worker with the real SDK and no engine (tests/platform/handlers/scripted.py)."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from runpod.serverless.modules import rp_scale

from emulator.fleet import WorkerProcessGroup
from support import ROOT

COMMAND = (sys.executable, "-u", str(ROOT / "tests/platform/handlers/scripted.py"))
# Requirements of the SDK's command line, and their own requirements: the image has none of them.
COMMAND_LINE_ONLY = "colorama InquirerPy pathspec pfzy prettytable prompt_toolkit watchdog wcwidth"
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",  # or the SDK would read credentials there
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_LOG_LEVEL": "INFO",
    "RUNPOD_PING_INTERVAL": "1000",
    "PYTHONPATH": f"{ROOT / 'src'}:{Path(__file__).with_name('as_in_image')}",
    "MAX_CONCURRENCY": "8",
    "LOOP": "sdk",
    "NOT_INSTALLED": COMMAND_LINE_ONLY,
}
# The loops that can take jobs. The SDK's own loop, which only runs with other releases of the SDK,
# can't stop a job before 1.10.
_SDK_LOOPS = ("sdk",) if hasattr(rp_scale.JobScaler, "stop_job") else ()
LOOPS = ("worker", *(pytest.param(loop, marks=pytest.mark.slow) for loop in _SDK_LOOPS))


def full_gpu_environ(folder: Path) -> dict[str, str]:
    """Write programs with which the SDK's check of GPUs fails, and return their variables."""
    # The check asks the first whether there is a GPU, and for a list of GPUs; before version 2.0 it
    # accepts a listed GPU whose memory test has failed.
    commands = {
        "nvidia-smi": "[ $# = 0 ] && echo NVIDIA-SMI",
        "gpu_test": "echo Found 1 GPUs:; echo GPU 0 memory allocation failed",
    }
    for name, command in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "RUNPOD_BINARY_GPU_TEST_PATH": str(folder / "gpu_test")}


@asynccontextmanager
async def scripted_worker(
    environ: dict[str, str], max_concurrency: int, loop: str
) -> AsyncIterator[WorkerProcessGroup]:
    """Start a worker as in production, with the platform's variables; kill it after the block.

    ``loop`` is one of ``LOOPS``.
    """
    environ = {**ENVIRON, **environ, "MAX_CONCURRENCY": str(max_concurrency), "LOOP": loop}
    process = await WorkerProcessGroup.start(COMMAND, environ, Path(os.devnull))
    try:
        yield process
    finally:
        await process.kill()
