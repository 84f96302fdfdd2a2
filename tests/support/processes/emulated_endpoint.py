"""A worker with the platform's variables, on an emulator in the test's process."""

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator import Emulator, Job, Options
from support.processes.background import HUNG_S, BackgroundProcess, start_command
from support.processes.commands import SCRIPT


@dataclass(frozen=True)
class BackgroundWorker:
    """A worker's process that the emulator can signal."""

    worker: BackgroundProcess

    @property
    def pid(self) -> int:
        return self.worker.process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send SIGTERM to the first process, other signals to all, like the platform."""
        with suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self.worker.process.terminate()
            else:
                os.killpg(self.pid, number)


@dataclass(frozen=True)
class EmulatedEndpoint:
    """An emulator, whose jobs tests can inspect, and its worker's process."""

    emulator: Emulator
    worker: BackgroundProcess

    async def run(self, payload: Any) -> Job:
        """Submit a job and wait until it ends."""
        job = self.submit(payload)
        assert await job.wait_for_end(HUNG_S), self.log
        return job

    def submit(self, payload: Any) -> Job:
        return self.emulator.queue.submit({"input": payload})

    async def answers_jobs(self) -> bool:
        """Return whether the worker still answers a job correctly."""
        params = {"max_tokens": 2, "ignore_eos": True}
        job = await self.run({"prompt": "Hi", "sampling_params": params})
        return bool(job.output and job.output[0]["usage"]["output"] == 2)

    @property
    def log(self) -> str:
        return self.worker.output

    def core_pid(self) -> int:
        """Return the id of the model's engine core, a child of the worker."""
        return self.worker.core_pids()[0]


@asynccontextmanager
async def emulated_endpoint(
    environ: dict[str, str],
    log: Path,
    command: Sequence[str | Path] = (SCRIPT,),
    *,
    first_job: bool = True,
    **options: Any,
) -> AsyncIterator[EmulatedEndpoint]:
    """Start a worker, whose environment overrides the emulator's variables.

    With ``first_job``, a job has run before the block begins. The options are the emulator's.
    """
    async with Emulator(Options(**{"long_poll_s": 1, **options})) as emulator:
        with start_command(command, {**emulator.worker_environ(), **environ}, log) as worker:
            emulator.queue.get_worker("worker-1").process = BackgroundWorker(worker)
            endpoint = EmulatedEndpoint(emulator, worker)
            if first_job:
                await endpoint.run({"prompt": "Hi", "sampling_params": {"max_tokens": 1}})
            yield endpoint
