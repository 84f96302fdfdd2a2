"""An emulator with workers started as in production, and the times of their jobs."""

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import bench

from emulator import Emulator, Job, Options, Status
from proof.measure import http_load
from proof.measure.processes import Lost, run_process

# Time limits of a worker's startup and of a job; they only end a benchmark that hangs.
START_S = 180.0
JOB_S = 120.0
# For all engines: those of the workers and of vLLM's own server.
ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}

Figure = TypeVar("Figure")


def payload(prompt: str, tokens: int) -> dict[str, Any]:
    """Return a raw job whose answer has exactly this number of tokens."""
    params = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return {"input": {"prompt": prompt, "sampling_params": params}}


def percentiles(times_ms: list[float]) -> str:
    """Return the median and the 99th percentile as text."""
    ordered = sorted(times_ms)
    p50, p99 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"p50 {p50:7.1f} ms, p99 {p99:7.1f} ms"


@dataclass(frozen=True)
class Load:
    """Jobs that were submitted concurrently, and their total duration."""

    jobs: list[Job]
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return len(self.jobs) / self.seconds

    @property
    def times_ms(self) -> list[float]:
        """Milliseconds from each job's submission to its end."""
        return [1000 * (job.ended_at - job.queued_at) for job in self.jobs if job.ended_at]

    @property
    def longest_gap_ms(self) -> float:
        """Longest time during which a job waited although no job was taken."""
        jobs = sorted((job.started_at, job.queued_at) for job in self.jobs if job.started_at)
        gaps = [jobs[0][0] - jobs[0][1]]
        gaps += [taken - max(previous, queued) for (previous, _), (taken, queued) in pairwise(jobs)]
        return 1000 * max(gaps)


@dataclass(frozen=True)
class Endpoint:
    """An emulator and the processes of its workers."""

    emulator: Emulator
    processes: list[Process]

    async def answer(self, prompt: str, tokens: int) -> Job:
        """Submit a job and wait for its end.

        Raises:
            Lost: If the job fails, does not end in time, or tokens are missing.
        """
        job = self.emulator.queue.submit(payload(prompt, tokens))
        await job.wait_for_end(JOB_S)
        if job.status is not Status.COMPLETED or job.output[-1]["usage"]["output"] != tokens:
            raise Lost(f"a job is {job.status}, with {job.error or job.output}")
        return job

    async def load(self, count: int, callers: int, tokens: int) -> Load:
        """Run jobs for callers who submit the next one when theirs has ended."""
        waiting = iter(http_load.prompts(count))
        jobs: list[Job] = []

        async def call() -> None:
            jobs.extend([await self.answer(prompt, tokens) for prompt in waiting])

        start = time.monotonic()
        await asyncio.gather(*(call() for _ in range(callers)))
        return Load(jobs, time.monotonic() - start)


def handler_command(root: Path = bench.ROOT) -> list[str]:
    """Return the command that starts the worker of a checkout in production."""
    return [sys.executable, "-u", str(root / "src" / "handler.py")]


@asynccontextmanager
async def start_endpoint(
    environ: Mapping[str, str],
    command: list[str] | None = None,
    workers: int = 1,
    options: Options | None = None,
    stdout: int = DEVNULL,
) -> AsyncIterator[Endpoint]:
    """Start an emulator and workers; all of them request jobs when the block begins."""
    async with AsyncExitStack() as stack:
        emulator = await stack.enter_async_context(Emulator(options))
        processes = []
        for number in range(1, workers + 1):
            platform = emulator.worker_environ(f"worker-{number}")
            running = run_process(
                command or handler_command(),
                {**ENGINE, **environ, **platform},
                quiet=True,
                stdout=stdout,
            )
            processes.append(await stack.enter_async_context(running))
        for number, process in enumerate(processes, 1):
            await wait_until_ready(emulator, f"worker-{number}", process)
        yield Endpoint(emulator, processes)


async def wait_until_ready(emulator: Emulator, name: str, process: Process) -> None:
    """Wait until a worker requests its first job.

    Raises:
        Lost: If its process exits, or the time is over.
    """
    worker = emulator.queue.get_worker(name)
    ready = asyncio.create_task(worker.changed.wait_for(lambda: worker.ready, START_S))
    ended = asyncio.create_task(process.wait())
    await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (ready, ended):
        task.cancel()
    if not worker.ready:
        raise Lost(f"a worker did not start (exit status {process.returncode})")


async def alternate(
    sides: Mapping[str, Callable[[], Awaitable[Figure]]], rounds: int
) -> dict[str, list[Figure]]:
    """Measure the sides alternately; the first turn warms them up and does not count."""
    figures: dict[str, list[Figure]] = {side: [] for side in sides}
    for turn in range(-1, rounds):
        # The order alternates because the first side warms the machine up for the second.
        for side in sorted(sides, reverse=turn % 2 == 0):
            figure = await sides[side]()
            if turn >= 0:
                figures[side].append(figure)
    return figures


def verdict(ratio: float, goal: float, *, least: bool = False) -> str:
    """Return a ratio with its goal, which is a maximum unless ``least`` is set."""
    met = ratio >= goal if least else ratio <= goal
    return f"{ratio:.2f} x (goal {'>=' if least else '<='} {goal}: {'met' if met else 'missed'})"
