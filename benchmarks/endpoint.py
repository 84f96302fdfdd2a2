"""An endpoint for benchmarks: a platform in this process, and workers started as in production.

The platform is an emulator, whose jobs have the times at which they were submitted, taken and
ended.
"""

import asyncio
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import aiohttp
import bench  # noqa: F401 - makes src importable

from emulator import Emulator, Job, Options, Status
from proof.measure import loads
from proof.measure.processes import Lost, next_line, run_process
from proof.measure.sides import HANDLER

# Time limits of a worker's startup and of a job; they only end a benchmark that hangs.
START_S = 180.0
JOB_S = 120.0
# For all engines.
ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class JobLoad:
    """Jobs that were submitted concurrently, and their total duration."""

    jobs: list[Job]
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return len(self.jobs) / self.seconds


@dataclass(frozen=True)
class Endpoint:
    """An emulator and the processes of its workers."""

    emulator: Emulator
    processes: list[Process]

    async def answer(self, prompt: str, tokens: int) -> Job:
        """Run a raw job whose answer has exactly so many tokens; raise ``Lost`` if it fails."""
        params = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        job = self.emulator.queue.submit({"input": {"prompt": prompt, "sampling_params": params}})
        await job.wait_for_end(JOB_S)
        if job.status is not Status.COMPLETED or job.output[-1]["usage"]["output"] != tokens:
            raise Lost(f"a job is {job.status}, with {job.error or job.output}")
        return job

    async def load(self, count: int, callers: int, tokens: int) -> JobLoad:
        """Run jobs for callers who submit the next one when theirs has ended."""
        waiting = iter(loads.prompts(count))
        jobs: list[Job] = []

        async def call() -> None:
            jobs.extend([await self.answer(prompt, tokens) for prompt in waiting])

        start = time.monotonic()
        await asyncio.gather(*(call() for _ in range(callers)))
        return JobLoad(jobs, time.monotonic() - start)


@asynccontextmanager
async def start_endpoint(
    environ: Mapping[str, str],
    command: Sequence[str] = HANDLER,
    workers: int = 1,
    options: Options | None = None,
    stdout: int = DEVNULL,
) -> AsyncIterator[Endpoint]:
    """Start an emulator and workers; all of them request jobs when the block begins."""
    async with AsyncExitStack() as stack:
        emulator = await stack.enter_async_context(Emulator(options))
        processes = {}
        for name in (f"worker-{number}" for number in range(1, workers + 1)):
            variables = {**ENGINE, **environ, **emulator.worker_environ(name)}
            running = run_process(command, variables, quiet=True, stdout=stdout)
            processes[name] = await stack.enter_async_context(running)
        for name, process in processes.items():
            worker = emulator.queue.get_worker(name)
            is_ready = partial(attrgetter("ready"), worker)
            ready = asyncio.create_task(worker.changed.wait_for(is_ready, START_S))
            ended = asyncio.create_task(process.wait())
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in (ready, ended):
                task.cancel()
            if not worker.ready:
                raise Lost(f"a worker did not start (exit status {process.returncode})")
        yield Endpoint(emulator, [*processes.values()])


@asynccontextmanager
async def serve(environ: Mapping[str, str]) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    """Run a worker with ``--serve``; yield a session for its URL, and its process id."""
    command = (*HANDLER, "--serve", "--port", "0")
    async with run_process(command, {**ENGINE, **environ}, merged=True) as process:
        while "running" not in (words := await next_line(process, "")):
            pass
        url = next(word for word in words if word.startswith("http://"))
        drain = asyncio.create_task(process.communicate())
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(url, timeout=timeout) as session:
            yield session, process.pid
        drain.cancel()
