"""A worker of the real SDK without an engine (tests/platform/handlers/scripted.py)."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runpod.serverless.modules import rp_scale

from emulator.fleet import WorkerProcess
from support import ROOT

COMMAND = (sys.executable, "-u", str(ROOT / "tests/platform/handlers/scripted.py"))
# What the SDK requires for its command line only, and what that requires: the image has none of it.
COMMAND_LINE_ONLY = "colorama InquirerPy pfzy prettytable prompt_toolkit watchdog wcwidth"
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
# Which loop takes the jobs. The SDK's own can't stop a job before 1.10.
LOOPS = ("worker", "sdk") if hasattr(rp_scale.JobScaler, "stop_job") else ("worker",)


@asynccontextmanager
async def scripted_worker(
    environ: dict[str, str], max_concurrency: int, loop: str
) -> AsyncIterator[WorkerProcess]:
    """Start a worker as in production, with the platform's variables; leaving ends it.

    Args:
        environ: the platform's variables.
        max_concurrency: how many jobs it takes at once.
        loop: one of ``LOOPS``.
    """
    environ = {**ENVIRON, **environ, "MAX_CONCURRENCY": str(max_concurrency), "LOOP": loop}
    process = await WorkerProcess.start(COMMAND, environ, Path(os.devnull))
    try:
        yield process
    finally:
        await process.kill()
