"""Cores that die or hang at random moments under load; every job must still get a response.

A core is killed, stopped, made to raise an exception, or blocked by a regular expression while the
limits on regular expressions are disabled.
"""

import asyncio
import os
import random
import signal
import time
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil
from support.processes.background import HUNG_S
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report, percentile
from chaos.workload import (
    Ending,
    details,
    ending_of,
    format_counts,
    is_stream,
    known_job,
    start_watched_endpoint,
)
from emulator import Job

SCRIPT = Path(__file__).parent / "workers" / "failing_worker.py"
CALLERS = 16
SIGNAL_AGAIN_S = 10.0  # between two signals that raise an exception
LONGEST_PAUSE_S = 3.0  # from the recovery of the service to the next death
# Rounds before the size of the worker that later sizes are compared with.
WARM_UP_ROUNDS = 5
MAX_GROWTH = 1.1
# The matcher of this pattern takes longer for each token; the ninth takes longer than the hang
# limit.
BOMB = "(((((a{0,100}){0,100}){0,100}){0,100}){0,100}){0,100}"


class Cause(StrEnum):
    """The reason why a core stops working."""

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
class DeathsRun:
    """All deaths of the cores of one worker."""

    endpoint: EmulatedEndpoint
    report: Report
    endings: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[Cause, list[float]] = field(default_factory=dict)
    # Memory (bytes), file descriptors and processes of the worker after each round.
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    is_stopping: bool = False

    async def call_repeatedly(self, rng: random.Random) -> None:
        """Submit jobs sequentially and check the outcome of each."""
        while not self.is_stopping:
            payload, text = known_job(rng)
            job = self.endpoint.submit(payload)
            if not await job.wait_for_end(HUNG_S):
                self.report.broken.append(f"a job has no end: {job.status}")
                return
            self._check(job, text)

    def _check(self, job: Job, text: str) -> None:
        ending = ending_of(job, text)
        has_begun = is_stream(job) and bool(job.chunks)
        kind = "begun" if has_begun else "not begun"
        self.endings[f"{kind}, {ending}"] += 1
        allowed = {Ending.WHOLE, Ending.RETRYABLE} if has_begun else {Ending.WHOLE, Ending.REFUSED}
        self.report.check(ending in allowed, f"a job, {kind}, is {ending}: {details(job)}")

    async def wait_for_running_jobs(self) -> None:
        """Wait for the jobs that run now: the longest ones don't end within short pauses."""
        jobs = self.endpoint.emulator.queue.jobs.values()
        await asyncio.gather(*(job.wait_for_end(HUNG_S) for job in jobs if not job.has_ended))

    async def end_core(self, name: str, cause: Cause) -> None:
        """End a core and wait until a new job is answered."""
        old_pids, started_at = set(self.endpoint.worker.core_pids()), time.monotonic()
        core_pid = self.endpoint.core_pid()
        bomb = self._disturb_core(core_pid, cause)
        signalled_at = started_at
        async with asyncio.timeout(HUNG_S):
            while old_pids & {*await asyncio.to_thread(self.endpoint.worker.core_pids)}:
                await asyncio.sleep(0.05)
                # The exception has no effect where a library ignores it.
                if cause is Cause.RAISED and time.monotonic() - signalled_at > SIGNAL_AGAIN_S:
                    with suppress(ProcessLookupError):
                        os.kill(core_pid, SIGNALS[cause])
                    signalled_at = time.monotonic()
        self.report.check(await self.endpoint.answers_jobs(), f"{name}: no service")
        self.recovery_s.setdefault(cause, []).append(time.monotonic() - started_at)
        if bomb is not None:
            assert await bomb.wait_for_end(HUNG_S), self.endpoint.log
        self.sizes.append(self._size())

    def _disturb_core(self, core_pid: int, cause: Cause) -> Job | None:
        if cause in SIGNALS:
            os.kill(core_pid, SIGNALS[cause])
            return None
        params = {"guided_regex": BOMB, "min_tokens": 40, "max_tokens": 40}
        return self.endpoint.submit({"prompt": "Hi", "sampling_params": params, "stream": True})

    def _size(self) -> tuple[int, int, int]:
        worker = psutil.Process(self.endpoint.worker.process.pid)
        return worker.memory_info().rss, worker.num_fds(), len(worker.children(recursive=True))


async def run(args: Namespace) -> Report:
    """End the cores of one worker repeatedly while 16 callers are waiting for responses."""
    deaths, seed = args.deaths, args.seed
    report = Report(f"deaths, {deaths} deaths, seed {seed}")
    environ = {**WORKER, "MAX_ENGINE_RESTARTS": "1000000"}
    async with start_watched_endpoint(
        environ, args.logs / "deaths.log", command=[SCRIPT]
    ) as endpoint:
        run_ = DeathsRun(endpoint, report)
        callers = [
            asyncio.create_task(run_.call_repeatedly(random.Random(f"{seed}/caller {number}")))
            for number in range(CALLERS)
        ]
        for number in range(deaths):
            rng = random.Random(f"{seed}/{number}")
            await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE_S))
            cause = list(Cause)[number % len(Cause)]
            await run_.end_core(f"death {number} ({cause})", cause)
            if cause is list(Cause)[-1]:
                await run_.wait_for_running_jobs()
        run_.is_stopping = True
        await asyncio.wait(callers)
    _add_figures(run_)
    return report


def _add_figures(run_: DeathsRun) -> None:
    report = run_.report
    for cause, seconds in run_.recovery_s.items():
        p50, most = percentile(seconds, 0.5), max(seconds)
        report.figures.append(f"{len(seconds)} {cause}: back after p50 {p50:.1f} s, max {most:.1f}")
    report.figures.append(format_counts(run_.endings))
    first, last = run_.sizes[min(WARM_UP_ROUNDS, len(run_.sizes)) - 1], run_.sizes[-1]
    report.figures.append(f"memory, files and processes {first} -> {last}")
    if any(after > MAX_GROWTH * old_pids for old_pids, after in zip(first, last, strict=True)):
        report.missed.append(f"growth to {last}: more than {MAX_GROWTH} x {first}")
