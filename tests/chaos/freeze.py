"""Freezes of an idle and of a streaming worker; after the thaw it continues as before."""

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
from chaos.workload import (
    GREEDY_PARAMS,
    Ending,
    details,
    ending_of,
    format_counts,
    job_input,
    start_watched_endpoint,
    wait_until_running,
)
from emulator import Job, faults_that_delay_posts

WORKER_ID = "worker-1"
LONGEST_PROMPT = max(ANSWERS, key=lambda question: len(ANSWERS[question]))
FIRST_PROMPT = "Hello!"
GOAL_S = 1.0  # from the thaw to the first token of the first job
LONGEST_PAUSE_S = 0.3  # before an idle worker is frozen
POST_DELAYS_S = (0.0, 0.05)
# Maximum number of streams that may end before the freeze.
MAX_TRIES = 50
THAW_LINE = re.compile(r"thawed after (\d+) s")


class FreezesRun:
    """All freezes of one worker."""

    def __init__(self, endpoint: EmulatedEndpoint, report: Report, seconds: float) -> None:
        self.report = report
        self.endings = Counter[str]()  # outcomes of frozen streams
        self.first_tokens_s: list[float] = []  # seconds from each thaw
        self._endpoint = endpoint
        self._seconds = seconds
        self._thaw_count = 0

    async def freeze_idle(self, name: str, rng: random.Random) -> None:
        """Freeze the idle worker; its next job arrives during the freeze or at the thaw."""
        # Without a pause, the worker may still be sending the result of the last job.
        await asyncio.sleep(rng.uniform(0, LONGEST_PAUSE_S))
        self._freeze()
        frozen_job = self._first_job() if rng.random() < 0.5 else None
        await self._check_thaw(name, frozen_job)

    async def freeze_streaming(self, name: str, rng: random.Random) -> None:
        """Freeze the worker during a stream, often during a POST."""
        faults = self._endpoint.emulator.faults
        for fault in faults_that_delay_posts(rng.choice(POST_DELAYS_S)):
            faults.add(fault)
        for _ in range(MAX_TRIES):
            raw = rng.random() < 0.5
            job = self._endpoint.submit(
                job_input(LONGEST_PROMPT, GREEDY_PARAMS, raw=raw, stream=True)
            )
            if await wait_until_running(job, chunks=rng.randint(1, 4)):
                break
        else:
            self.report.broken.append(f"{name}: every stream ended too early to be frozen")
            return
        self._freeze()
        faults.clear()
        await self._check_thaw(name, None)
        await job.wait_for_end(HUNG_S)
        ending = ending_of(job, ANSWERS[LONGEST_PROMPT])
        self.endings[ending] += 1
        self.report.check(
            ending in (Ending.WHOLE, Ending.RETRYABLE),
            f"{name}: the frozen stream is {ending}: {details(job)}",
        )

    def _freeze(self) -> None:
        self._thaw_count = len(self._logged_thaws())
        self._endpoint.emulator.freeze_worker(WORKER_ID, self._seconds)

    def _first_job(self) -> Job:
        return self._endpoint.submit(job_input(FIRST_PROMPT, GREEDY_PARAMS, raw=True, stream=True))

    async def _check_thaw(self, name: str, frozen_job: Job | None) -> None:
        worker = self._endpoint.emulator.queue.get_worker(WORKER_ID)
        await worker.changed.wait_for(lambda: not worker.frozen, self._seconds + HUNG_S)
        thawed_at = time.monotonic()
        job = frozen_job or self._first_job()
        await job.wait_for_end(HUNG_S)
        if job.chunks:
            self.first_tokens_s.append(job.chunks[0].arrived_at - thawed_at)
        ending = ending_of(job, ANSWERS[FIRST_PROMPT])
        self.report.check(ending is Ending.WHOLE, f"{name}: the first job is {ending}")
        logged_s = self._logged_thaws()[self._thaw_count :]
        self.report.check(
            len(logged_s) == 1 and abs(logged_s[0] - self._seconds) <= 2,
            f"{name}: the log says a thaw after {logged_s} s",
        )

    def _logged_thaws(self) -> list[int]:
        return [int(seconds) for seconds in THAW_LINE.findall(self._endpoint.log)]


async def run(args: Namespace) -> Report:
    """Freeze one worker repeatedly while it is idle and while it is streaming."""
    idle, streaming, seconds, seed = args.freezes, args.stream_freezes, args.seconds, args.seed
    report = Report(f"freeze, {idle} idle, {streaming} streaming, {seconds:g} s, seed {seed}")
    async with start_watched_endpoint(WORKER, args.logs / "freeze.log") as endpoint:
        run_ = FreezesRun(endpoint, report, seconds)
        for number in range(idle + streaming):
            rng = random.Random(f"{seed}/{number}")
            if number < idle:
                await run_.freeze_idle(f"freeze {number} (idle)", rng)
            else:
                await run_.freeze_streaming(f"freeze {number} (streaming)", rng)
        report.check("engine died" not in endpoint.log, "the engine was declared dead")
    report.add_goal("from the thaw to the first token", run_.first_tokens_s, 1, GOAL_S)
    if run_.endings:
        report.figures.append(f"frozen streams: {format_counts(run_.endings)}")
    return report
