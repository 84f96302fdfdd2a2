"""A job loop in the test's process, between an emulator and answers that follow a script."""

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

from aiohttp import ClientSession, TraceConfig, web

from emulator import Emulator, Job
from job_loop import JobLoop, Limits, Wire
from job_loop.wire import Urls
from support.processes.background import HUNG_S, eventually
from worker.errors import WorkerError
from worker.record import JobRecord

HANG = "hang"  # in place of a yield: nothing comes until the answer is ended
UNPOSTABLE = "unpostable"  # in place of a yield that is no JSON


@dataclass
class ScriptedAnswers:
    """Yields what a job's input says: ``{"yields": [...], "stream": true}``."""

    records: list[JobRecord] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)  # the ids of jobs whose answers have ended
    running: set[str] = field(default_factory=set)
    most_running: int = 0
    ready: bool = True
    left: bool = False  # whether it was told that the worker is being stopped

    def __post_init__(self) -> None:
        self._ended: asyncio.Future[WorkerError] = asyncio.get_running_loop().create_future()

    async def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]:
        if isinstance(job["input"], WorkerError):
            yield {"error": json.dumps(job["input"].body(record.id))}
            return
        record.streamed = job["input"].get("stream", False)
        self.records.append(record)
        self.running.add(job["id"])
        self.most_running = max(self.most_running, len(self.running))
        try:
            for value in job["input"]["yields"]:
                if value != HANG:
                    yield object() if value == UNPOSTABLE else value
                    continue
                error = await asyncio.shield(self._ended)
                record.status = error.status
                yield {"error": json.dumps(error.body(record.id))}
                return
        finally:
            self.running.remove(job["id"])
            self.closed.append(job["id"])

    def leave(self) -> None:
        self.left = True

    def end_all(self, error: WorkerError) -> None:
        self._ended.set_result(error)


@dataclass
class Platform:
    """An emulator with one job loop behind it."""

    emulator: Emulator
    answers: ScriptedAnswers
    loop: JobLoop
    wire: Wire
    died: "Future[None]"
    in_progress: set[str]
    task: asyncio.Task[None]

    def submit(self, *yields: Any, stream: bool = False, **payload: Any) -> Job:
        job_input = {"yields": yields, "stream": stream}
        return self.emulator.queue.submit({"input": job_input, **payload})

    async def run(self, *yields: Any, stream: bool = False, **payload: Any) -> Job:
        job = self.submit(*yields, stream=stream, **payload)
        assert await job.wait_ended(HUNG_S)
        return job

    async def begun(self, *jobs: Job) -> None:
        """Wait until the jobs have begun; some may have ended since."""
        records = self.answers.records
        await eventually(lambda: {job.id for job in jobs} <= {record.id for record in records})

    async def idle(self) -> None:
        """Wait until no job is in progress."""
        await eventually(lambda: not self.in_progress)

    async def ended(self) -> None:
        """Wait for the loop's end."""
        async with asyncio.timeout(HUNG_S):
            await asyncio.shield(self.task)


def urls(emulator: Emulator) -> Urls:
    """Return an emulator's addresses as the SDK reads them."""
    environ = emulator.worker_environ("w")
    return Urls(
        environ["RUNPOD_WEBHOOK_GET_JOB"].replace("$ID", "w"),
        environ["RUNPOD_WEBHOOK_POST_STREAM"].replace("$RUNPOD_POD_ID", "w"),
        environ["RUNPOD_WEBHOOK_POST_OUTPUT"].replace("$RUNPOD_POD_ID", "w"),
    )


def session(trace: TraceConfig) -> ClientSession:
    return ClientSession(trace_configs=[trace])


@asynccontextmanager
async def looping(
    emulator: Emulator, jobs: int = 4, grace_s: float = 60, values: float = math.inf
) -> AsyncIterator[Platform]:
    """Run a job loop behind an emulator that serves; leaving ends it."""
    answers, wire, in_progress = ScriptedAnswers(), Wire(urls(emulator), session), set[str]()
    died: Future[None] = Future()
    loop = JobLoop(answers, wire, Limits(jobs, grace_s, values), died, in_progress)
    task = asyncio.create_task(loop.run())
    try:
        yield Platform(emulator, answers, loop, wire, died, in_progress, task)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def serving(*routes: web.RouteDef, bound: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve routes, at a socket if one is given; yield the address in front of their paths."""
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
