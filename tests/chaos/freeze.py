"""Freezes of an idle worker and of a streaming one: after the thaw it answers as if nothing was."""

import asyncio
import random
import re
import time
from argparse import Namespace
from collections import Counter

from demo_model import ANSWERS
from support.processes.background import HUNG_S
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report
from chaos.watch import lasting_endpoint
from chaos.workload import GREEDY, Ending, counts, details, ending_of, job_input, runs
from emulator import Job, slow_link

WORKER_ID = "worker-1"
LONGEST = max(ANSWERS, key=lambda question: len(ANSWERS[question]))
FIRST = "Hello!"
GOAL_S = 1.0  # from the thaw to the first token of the first job
LONGEST_PAUSE_S = 0.3  # before an idle worker is frozen
POST_DELAYS_S = (0.0, 0.05)
# Streams that may end before they are frozen.
MOST_TRIES = 50
THAWED = re.compile(r"thawed after (\d+) s")


class Run:
    """All freezes of one worker."""

    def __init__(self, endpoint: EmulatedEndpoint, report: Report, seconds: float) -> None:
        self.report = report
        self.endings = Counter[str]()  # of frozen streams
        self.first_tokens_s: list[float] = []  # after the thaws
        self._endpoint = endpoint
        self._seconds = seconds
        self._thaws = 0

    async def idle(self, name: str, rng: random.Random) -> None:
        """Freeze the idle worker; its next job comes while it is frozen, or at the thaw."""
        # Without a pause its answer to the last job may still be on its way.
        await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE_S))
        self._freeze()
        waiting = self._first_job() if rng.random() < 0.5 else None
        await self._check_thaw(name, waiting)

    async def streaming(self, name: str, rng: random.Random) -> None:
        """Freeze the worker in the middle of a stream, and often of a post."""
        faults = self._endpoint.emulator.faults
        for fault in slow_link(rng.choice(POST_DELAYS_S)):
            faults.add(fault)
        for _ in range(MOST_TRIES):
            raw = rng.random() < 0.5
            job = self._endpoint.submit(job_input(LONGEST, GREEDY, raw=raw, stream=True))
            if await runs(job, chunks=rng.randint(1, 4)):
                break
        else:
            self.report.broken.append(f"{name}: every stream ended too early to be frozen")
            return
        self._freeze()
        faults.clear()
        await self._check_thaw(name, None)
        await job.wait_ended(HUNG_S)
        ending = ending_of(job, ANSWERS[LONGEST])
        self.endings[ending] += 1
        self.report.check(
            ending in (Ending.WHOLE, Ending.RETRYABLE),
            f"{name}: the frozen stream is {ending}: {details(job)}",
        )

    def _freeze(self) -> None:
        self._thaws = len(self._thawed())
        self._endpoint.emulator.freeze(WORKER_ID, self._seconds)

    def _first_job(self) -> Job:
        return self._endpoint.submit(job_input(FIRST, GREEDY, raw=True, stream=True))

    async def _check_thaw(self, name: str, waiting: Job | None) -> None:
        worker = self._endpoint.emulator.queue.worker(WORKER_ID)
        await worker.changed.wait_for(lambda: not worker.frozen, self._seconds + HUNG_S)
        thawed = time.monotonic()
        job = waiting or self._first_job()
        await job.wait_ended(HUNG_S)
        if job.chunks:
            self.first_tokens_s.append(job.chunks[0].at - thawed)
        ending = ending_of(job, ANSWERS[FIRST])
        self.report.check(ending is Ending.WHOLE, f"{name}: the first job is {ending}")
        lines = self._thawed()[self._thaws :]
        self.report.check(
            len(lines) == 1 and abs(lines[0] - self._seconds) <= 2,
            f"{name}: the log says a thaw after {lines} s",
        )

    def _thawed(self) -> list[int]:
        return [int(seconds) for seconds in THAWED.findall(self._endpoint.logged)]


async def run(args: Namespace) -> Report:
    """Freeze one worker, so many times while it is idle and while it streams."""
    idle, streaming, seconds, seed = args.freezes, args.stream_freezes, args.seconds, args.seed
    report = Report(f"freeze, {idle} idle, {streaming} streaming, {seconds:g} s, seed {seed}")
    async with lasting_endpoint(WORKER, args.logs / "freeze.log") as endpoint:
        run_ = Run(endpoint, report, seconds)
        for number in range(idle + streaming):
            rng = random.Random(f"{seed}/{number}")
            if number < idle:
                await run_.idle(f"freeze {number} (idle)", rng)
            else:
                await run_.streaming(f"freeze {number} (streaming)", rng)
        report.check("engine died" not in endpoint.logged, "the engine was declared dead")
    report.goal("from the thaw to the first token", run_.first_tokens_s, 1, GOAL_S)
    if run_.endings:
        report.figures.append(f"frozen streams: {counts(run_.endings)}")
    return report
