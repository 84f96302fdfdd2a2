"""An endpoint for tests: a worker started as in production, behind an emulator of its own."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator import Emulator, Job, Options, slow_link
from emulator.process import WorkerProcess
from support import ROOT

START_S = 90  # a cold start takes ten seconds on an idle machine


@dataclass(frozen=True)
class Endpoint:
    """An emulator and the worker process behind it."""

    emulator: Emulator
    process: WorkerProcess
    log: Path

    async def run(self, payload: Any) -> Job:
        """Hand in a job and wait for its end."""
        job = self.submit(payload)
        assert await job.wait_ended(60)
        return job

    def submit(self, payload: Any) -> Job:
        return self.emulator.queue.submit({"input": payload})

    async def answers(self) -> bool:
        """Whether the worker still does what it should."""
        params = {"max_tokens": 2, "ignore_eos": True}
        job = await self.run({"prompt": "Hi", "sampling_params": params})
        return bool(job.output and job.output[0]["usage"]["output"] == 2)

    @property
    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def core_pid(self) -> int:
        """Find the process of the model's core, the worker's child."""
        return self.core_pids()[0]

    def core_pids(self) -> list[int]:
        """Find the processes of all cores, in the order of their start."""
        listed = subprocess.run(
            ["pgrep", "-g", str(self.process.group), "-f", "EngineCore"],
            capture_output=True,
            check=True,
        )
        return [int(pid) for pid in listed.stdout.split()]


EndpointFactory = Callable[..., AbstractAsyncContextManager[Endpoint]]


@asynccontextmanager
async def start_endpoint(
    environ: dict[str, str], log: Path, post_delay_s: float = 0
) -> AsyncIterator[Endpoint]:
    """Start a worker with an environment; it has answered a first job when the block begins."""
    async with Emulator(Options(faults=slow_link(post_delay_s), take_poll_s=1)) as emulator:
        command = (sys.executable, "-u", str(ROOT / "src" / "handler.py"))
        process = await WorkerProcess.start(command, {**environ, **emulator.worker_environ()}, log)
        endpoint = Endpoint(emulator, process, log)
        try:
            first = endpoint.submit({"prompt": "Hi", "sampling_params": {"max_tokens": 1}})
            assert await first.wait_ended(START_S), endpoint.logged
            yield endpoint
        finally:
            await process.kill()
