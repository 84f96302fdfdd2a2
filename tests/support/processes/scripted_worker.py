"""A worker with the real SDK and no engine (tests/platform/handlers/scripted.py)."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
# The loops that can take jobs. The SDK's own loop can't stop a job before 1.10.
LOOPS = ("worker", "sdk") if hasattr(rp_scale.JobScaler, "stop_job") else ("worker",)


@asynccontextmanager
async def scripted_worker(
    environ: dict[str, str], max_concurrency: int, loop: str
) -> AsyncIterator[WorkerProcessGroup]:
    """Start a worker as in production, with the platform's variables; kill it after the block.

    Args:
        environ: The platform's variables.
        max_concurrency: Maximum number of concurrent jobs.
        loop: One of ``LOOPS``.
    """
    environ = {**ENVIRON, **environ, "MAX_CONCURRENCY": str(max_concurrency), "LOOP": loop}
    process = await WorkerProcessGroup.start(COMMAND, environ, Path(os.devnull))
    try:
        yield process
    finally:
        await process.kill()
