"""A worker with the platform's variables, behind an emulator that runs in the test's process."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator import Emulator, Job, Options, slow_link
from support.processes.background import HUNG_S, Background, background
from support.processes.commands import SCRIPT


@dataclass(frozen=True)
class BackgroundWorker:
    """A worker's process for the emulator, which signals it."""

    worker: Background

    @property
    def pid(self) -> int:
        return self.worker.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal as to a container: SIGTERM to the first process, others to all."""
        with suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self.worker.process.terminate()
            else:
                os.killpg(self.pid, number)


@dataclass(frozen=True)
class EmulatedEndpoint:
    """An emulator, whose jobs can be looked at, and the worker's process behind it."""

    emulator: Emulator
    worker: Background

    async def run(self, payload: Any) -> Job:
        """Hand in a job and wait for its end."""
        job = self.submit(payload)
        assert await job.wait_ended(HUNG_S), self.logged
        return job

    def submit(self, payload: Any) -> Job:
        return self.emulator.queue.submit({"input": payload})

    async def answers(self) -> bool:
        """Return whether the worker still does what it should."""
        params = {"max_tokens": 2, "ignore_eos": True}
        job = await self.run({"prompt": "Hi", "sampling_params": params})
        return bool(job.output and job.output[0]["usage"]["output"] == 2)

    @property
    def logged(self) -> str:
        return self.worker.output

    def core_pid(self) -> int:
        """Find the process of the model's core, the worker's child."""
        return self.worker.cores()[0]


EndpointFactory = Callable[..., AbstractAsyncContextManager[EmulatedEndpoint]]


@asynccontextmanager
async def emulated_endpoint(
    environ: dict[str, str],
    log: Path,
    post_delay_s: float = 0,
    command: Sequence[str | Path] = (SCRIPT,),
    *,
    first_job: bool = True,
    **options: Any,
) -> AsyncIterator[EmulatedEndpoint]:
    """Start a worker with an environment.

    Args:
        environ: of the worker, which wins over the emulator's variables.
        log: the file for the worker's output.
        post_delay_s: how long each of its posts takes.
        command: what it runs (see ``background``).
        first_job: whether it has answered a job when the block begins.
        options: others of the emulator.
    """
    options = {"faults": slow_link(post_delay_s), "take_poll_s": 1, **options}
    async with Emulator(Options(**options)) as emulator:
        with background(command, {**emulator.worker_environ(), **environ}, log) as worker:
            emulator.queue.worker("worker-1").process = BackgroundWorker(worker)
            endpoint = EmulatedEndpoint(emulator, worker)
            if first_job:
                await endpoint.run({"prompt": "Hi", "sampling_params": {"max_tokens": 1}})
            yield endpoint
