"""Cores that die or hang at random moments under a load: every job is answered nevertheless.

The core is killed, stopped, made to raise an exception, or kept busy by a regular expression whose
bound is turned off.
"""

import asyncio
import os
import random
import signal
import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil
from support.processes.background import HUNG_S
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report, percentile
from chaos.watch import lasting_endpoint
from chaos.workload import Ending, counts, details, ending_of, is_stream, known_job
from emulator import Job

SCRIPT = Path(__file__).parent / "workers" / "raising.py"
CALLERS = 16
LONGEST_PAUSE_S = 3.0  # between service that is back and the next death
# Rounds after which the worker's size is the one that all others are compared with.
WARM = 5
MOST_GROWTH = 1.1
# Its matcher needs more time for each token: the ninth takes longer than a hang.
BOMB = "(((((a{0,100}){0,100}){0,100}){0,100}){0,100}){0,100}"
UNBOUND = {
    "STRUCTURED_MAX_REPETITIONS": "1000000000000000",
    "STRUCTURED_MAX_NESTING": "10",
    "STRUCTURED_COMPILE_S": "0",
}


class Cause(StrEnum):
    """Why a core does not go on."""

    KILLED = "killed"
    STOPPED = "stopped"
    RAISED = "raised"
    BOMB = "kept busy"


SIGNALS = {
    Cause.KILLED: signal.SIGKILL,
    Cause.STOPPED: signal.SIGSTOP,
    Cause.RAISED: signal.SIGUSR1,
}


@dataclass
class Run:
    """All deaths of one worker's cores."""

    endpoint: EmulatedEndpoint
    report: Report
    endings: Counter[str] = field(default_factory=Counter)
    back_s: dict[Cause, list[float]] = field(default_factory=dict)
    # The worker's memory (bytes), file descriptors and processes after each round.
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    stopping: bool = False

    async def caller(self, rng: random.Random) -> None:
        """Hand in jobs, one after the other, and check what came of each."""
        while not self.stopping:
            payload, text = known_job(rng)
            job = self.endpoint.submit(payload)
            if not await job.wait_ended(HUNG_S):
                self.report.broken.append(f"a job has no end: {job.status}")
                return
            self._check(job, text)

    def _check(self, job: Job, text: str) -> None:
        ending = ending_of(job, text)
        begun = is_stream(job) and bool(job.chunks)
        kind = "begun" if begun else "not begun"
        self.endings[f"{kind}, {ending}"] += 1
        allowed = {Ending.WHOLE, Ending.RETRYABLE} if begun else {Ending.WHOLE, Ending.REFUSED}
        self.report.check(ending in allowed, f"a job, {kind}, is {ending}: {details(job)}")

    async def strike(self, name: str, cause: Cause) -> None:
        """End a core, and wait until a job that is handed in now is answered."""
        before, began = set(self.endpoint.worker.cores()), time.monotonic()
        bomb = self._strike(cause)
        async with asyncio.timeout(HUNG_S):
            while before & {*await asyncio.to_thread(self.endpoint.worker.cores)}:
                await asyncio.sleep(0.05)
        self.report.check(await self.endpoint.answers(), f"{name}: no service")
        self.back_s.setdefault(cause, []).append(time.monotonic() - began)
        if bomb is not None:
            assert await bomb.wait_ended(HUNG_S), self.endpoint.logged
        self.sizes.append(self._size())

    def _strike(self, cause: Cause) -> Job | None:
        if cause in SIGNALS:
            os.kill(self.endpoint.core_pid(), SIGNALS[cause])
            return None
        params = {"guided_regex": BOMB, "min_tokens": 40, "max_tokens": 40}
        return self.endpoint.submit({"prompt": "Hi", "sampling_params": params, "stream": True})

    def _size(self) -> tuple[int, int, int]:
        worker = psutil.Process(self.endpoint.worker.process.pid)
        return worker.memory_info().rss, worker.num_fds(), len(worker.children(recursive=True))


async def run(args: Namespace) -> Report:
    """End so many cores of one worker, while 16 callers always wait for answers."""
    deaths, seed = args.deaths, args.seed
    report = Report(f"deaths, {deaths} deaths, seed {seed}")
    environ = {**WORKER, **UNBOUND, "MAX_ENGINE_RESTARTS": "1000000"}
    async with lasting_endpoint(environ, args.logs / "deaths.log", command=[SCRIPT]) as endpoint:
        run_ = Run(endpoint, report)
        callers = [
            asyncio.create_task(run_.caller(random.Random(f"{seed}/caller {number}")))
            for number in range(CALLERS)
        ]
        for number in range(deaths):
            rng = random.Random(f"{seed}/{number}")
            await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE_S))
            cause = list(Cause)[number % len(Cause)]
            await run_.strike(f"death {number} ({cause})", cause)
        run_.stopping = True
        await asyncio.wait(callers)
    _add_figures(run_)
    return report


def _add_figures(run_: Run) -> None:
    report = run_.report
    for cause, seconds in run_.back_s.items():
        p50, most = percentile(seconds, 0.5), max(seconds)
        report.figures.append(f"{len(seconds)} {cause}: back after p50 {p50:.1f} s, max {most:.1f}")
    report.figures.append(counts(run_.endings))
    first, last = run_.sizes[min(WARM, len(run_.sizes)) - 1], run_.sizes[-1]
    report.figures.append(f"memory, files and processes {first} -> {last}")
    if any(after > MOST_GROWTH * before for before, after in zip(first, last, strict=True)):
        report.missed.append(f"growth to {last}: more than {MOST_GROWTH} x {first}")
