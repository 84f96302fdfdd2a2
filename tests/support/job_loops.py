"""A job loop in the test's process, between an emulator and scripted answers."""

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, web

from emulator import Emulator, Job
from job_loop import JobLoop, LoopLimits, PlatformClient
from job_loop.loop import BackgroundRunner
from job_loop.wire import PlatformUrls
from support.processes.background import HUNG_S, poll_until
from worker.errors import WorkerError
from worker.record import JobRecord

HANG = "hang"  # replaces a yield: nothing more is yielded until the answer is stopped
UNPOSTABLE = "unpostable"  # replaces a yield with an object that JSON can't represent


@dataclass
class ScriptedAnswers:
    """Yields the values in a job's input: ``{"yields": [...], "stream": true, …}``."""

    records: list[JobRecord] = field(default_factory=list)
    closed_jobs: list[str] = field(default_factory=list)  # ids of jobs whose answers have finished
    running_jobs: set[str] = field(default_factory=set)
    max_running: int = 0
    ready: bool = True
    has_stopped_long_work: bool = False  # whether the loop has notified it that the worker stops

    def __post_init__(self) -> None:
        self._error: asyncio.Future[WorkerError] = asyncio.get_running_loop().create_future()

    async def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]:
        if isinstance(job["input"], WorkerError):
            yield {"error": json.dumps(job["input"].body(record.id))}
            return
        record.streamed = job["input"].get("stream", False)
        record.is_whole = job["input"].get("whole", False)
        self.records.append(record)
        self.running_jobs.add(job["id"])
        self.max_running = max(self.max_running, len(self.running_jobs))
        try:
            for value in job["input"]["yields"]:
                if value != HANG:
                    yield object() if value == UNPOSTABLE else value
                    continue
                error = await asyncio.shield(self._error)
                record.status = error.status
                yield {"error": json.dumps(error.body(record.id))}
                return
        finally:
            self.running_jobs.remove(job["id"])
            self.closed_jobs.append(job["id"])

    def takes_slot(self, job: dict[str, Any]) -> bool:
        return not (isinstance(job["input"], dict) and job["input"].get("long"))

    def stop_long_work(self) -> None:
        self.has_stopped_long_work = True

    def fail_all_jobs(self, error: WorkerError) -> None:
        self._error.set_result(error)


@dataclass
class Platform:
    """An emulator and a job loop that takes its jobs."""

    emulator: Emulator
    answers: ScriptedAnswers
    loop: JobLoop
    wire: PlatformClient
    died: "Future[None]"
    in_progress: set[str]
    task: asyncio.Task[None]

    def submit(
        self,
        *yields: Any,
        stream: bool = False,
        whole: bool = False,
        long: bool = False,
        **payload: Any,
    ) -> Job:
        job_input = {"yields": yields, "stream": stream, "whole": whole, "long": long}
        return self.emulator.queue.submit({"input": job_input, **payload})

    async def run(self, *yields: Any, **options: Any) -> Job:
        job = self.submit(*yields, **options)
        assert await job.wait_for_end(HUNG_S)
        return job

    async def wait_until_begun(self, *jobs: Job) -> None:
        """Wait until the jobs have begun; some may already have finished."""
        records = self.answers.records
        await poll_until(lambda: {job.id for job in jobs} <= {record.id for record in records})

    async def wait_until_idle(self) -> None:
        """Wait until no job is in progress."""
        await poll_until(lambda: not self.in_progress)

    async def wait_for_exit(self) -> None:
        """Wait until the loop exits."""
        async with asyncio.timeout(HUNG_S):
            await asyncio.shield(self.task)


def platform_urls(emulator: Emulator) -> PlatformUrls:
    """Return an emulator's URLs as the SDK reads them."""
    environ = emulator.worker_environ("w")
    return PlatformUrls(
        environ["RUNPOD_WEBHOOK_GET_JOB"].replace("$ID", "w"),
        environ["RUNPOD_WEBHOOK_POST_STREAM"].replace("$RUNPOD_POD_ID", "w"),
        environ["RUNPOD_WEBHOOK_POST_OUTPUT"].replace("$RUNPOD_POD_ID", "w"),
    )


@asynccontextmanager
async def run_job_loop(
    emulator: Emulator,
    jobs: int = 4,
    grace_s: float = 60,
    values: float = math.inf,
    background: BackgroundRunner | None = None,
) -> AsyncIterator[Platform]:
    """Run a job loop on a running emulator; stop the loop at the end of the block."""
    answers, wire, in_progress = (
        ScriptedAnswers(),
        PlatformClient(platform_urls(emulator), ClientSession),
        set[str](),
    )
    died: Future[None] = Future()
    loop = JobLoop(answers, wire, LoopLimits(jobs, grace_s, values), died, in_progress, background)
    task = asyncio.create_task(loop.run())
    try:
        yield Platform(emulator, answers, loop, wire, died, in_progress, task)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def serve_routes(
    *routes: web.RouteDef, bound: socket.socket | None = None
) -> AsyncIterator[str]:
    """Serve routes, on a bound socket if there is one; yield the server's URL."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    try:
        await (
            web.SockSite(runner, bound) if bound else web.TCPSite(runner, "127.0.0.1", 0)
        ).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
