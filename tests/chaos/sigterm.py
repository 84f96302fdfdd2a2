"""SIGTERM at random moments: jobs that fit the grace period complete; no job or process is left."""

import asyncio
import random
import time
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from typing import Any

from support.processes.background import HUNG_S
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint, emulated_endpoint

from chaos.report import Report
from chaos.workload import Ending, details, ending_of, format_counts, known_job, long_job
from emulator import Job, Status

SLOTS = 16
QUEUED_JOBS = 8  # minimum number of jobs in the platform's queue
SHORT_GRACE_S, LONG_GRACE_S = 3, 25
MAX_SIGNAL_DELAY_S = 2.0  # from the first job to the signal
# Seconds after the signal during which jobs are still submitted.
SUBMIT_AFTER_SIGNAL_S = 0.5
# Seconds for a message between the worker and the platform on a busy machine. A job delivered up to
# this long after the signal may have been on its way, and a job that fails up to this long before
# the end of the grace period had all of it.
TRANSIT_S = 0.25
EXIT_WAIT_S = 5.0
GOAL_S = 1.0  # from the last result, or from the signal to an idle worker, to the exit


class Kind(StrEnum):
    """The load of a round and the signals to the worker."""

    FITS = "all fit"  # a long grace period, in which all jobs end
    CUT = "some are cut"  # a short grace period, which some jobs exceed
    IDLE = "idle"
    TWICE = "twice"  # a second signal while long jobs are running


@dataclass
class Round:
    """The shutdown of one worker. Times are those of ``time.monotonic``."""

    name: str
    kind: Kind
    jobs: list[tuple[Job, str | None]] = field(default_factory=list)  # with their expected texts
    signalled_at: float = 0.0
    exited_at: float = 0.0
    status: int | None = None
    remaining: list[int] = field(default_factory=list)  # process ids

    @property
    def grace_s(self) -> int:
        return LONG_GRACE_S if self.kind is Kind.FITS else SHORT_GRACE_S

    @property
    def last_answer(self) -> float:
        ended = [job.ended_at for job, _ in self.jobs if job.ended_at is not None]
        return max([self.signalled_at, *ended])


async def run(args: Namespace) -> Report:
    """Stop workers; every tenth is idle, and every tenth gets two signals."""
    report = Report(f"sigterm, {args.signals} rounds, seed {args.seed}")
    endings = Counter[str]()
    ended = []
    kinds = cycle([Kind.CUT, Kind.FITS] * 4 + [Kind.IDLE, Kind.TWICE])
    for number in range(args.signals):
        rng = random.Random(f"{args.seed}/{number}")
        round_ = Round(f"round {number}", next(kinds))
        await _run_round(round_, rng, args.logs / "sigterm.log")
        _check(round_, report, endings)
        ended.append(round_)
    report.figures.append(
        f"{endings[Ending.OPEN]} lost of {endings.total()}, {format_counts(endings)}"
    )
    _add_times(report, ended)
    return report


async def _run_round(round_: Round, rng: random.Random, log: Path) -> None:
    environ = {
        **WORKER,
        "MAX_CONCURRENCY": str(SLOTS),
        "SHUTDOWN_GRACE_S": str(round_.grace_s),
    }
    async with emulated_endpoint(environ, log, long_poll_s=20) as endpoint:
        load = asyncio.create_task(_submit_jobs(round_, rng, endpoint))
        await asyncio.sleep(rng.uniform(0, MAX_SIGNAL_DELAY_S))
        round_.signalled_at = time.monotonic()
        endpoint.worker.process.terminate()
        if round_.kind is Kind.TWICE:
            await asyncio.sleep(rng.uniform(0, 1))
            round_.signalled_at = time.monotonic()
            endpoint.worker.process.terminate()
        with suppress(TimeoutError):
            ended = asyncio.to_thread(endpoint.worker.process.wait, HUNG_S / 2)
            round_.status = await ended
        round_.exited_at = time.monotonic()
        load.cancel()
        round_.remaining = await _remaining_processes(endpoint)


async def _remaining_processes(endpoint: EmulatedEndpoint) -> list[int]:
    """Return the processes that still exist; a killed one may take a moment to disappear."""
    deadline = time.monotonic() + EXIT_WAIT_S
    while (remaining := endpoint.worker.session_pids()) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return remaining


async def _submit_jobs(round_: Round, rng: random.Random, endpoint: EmulatedEndpoint) -> None:
    """Keep jobs in the queue until shortly after the signal."""
    jobs, kind = round_.jobs, round_.kind

    def next_job() -> tuple[dict[str, Any], str | None]:
        if kind is Kind.TWICE or (kind is Kind.CUT and rng.random() < 0.25):
            return long_job(rng, stream=rng.random() < 0.5), None
        return known_job(rng)

    while kind is not Kind.IDLE:
        if round_.signalled_at and time.monotonic() > round_.signalled_at + SUBMIT_AFTER_SIGNAL_S:
            return
        waiting = sum(job.status is Status.IN_QUEUE for job, _ in jobs[-2 * QUEUED_JOBS :])
        for _ in range(QUEUED_JOBS - waiting):
            job_input, text = next_job()
            jobs.append((endpoint.submit(job_input), text))
        await asyncio.sleep(0.005)


def _check(round_: Round, report: Report, endings: Counter[str]) -> None:
    name = f"{round_.name} ({round_.kind})"
    report.check(not round_.remaining, f"{name}: {len(round_.remaining)} processes are left")
    if round_.kind is Kind.TWICE:
        # Running jobs are lost, as when the platform kills a container.
        report.check(round_.status is not None, f"{name}: two signals don't end it")
        return
    report.check(round_.status == 0, f"{name}: exit status {round_.status}")
    for job, text in round_.jobs:
        ending = ending_of(job, text)
        endings[ending] += 1
        if problem := _find_problem(round_, job, ending):
            report.broken.append(f"{name}: {job.id} {problem}")


def _find_problem(round_: Round, job: Job, ending: Ending) -> str | None:
    after_s = None if job.started_at is None else job.started_at - round_.signalled_at
    if after_s is not None and after_s > TRANSIT_S:
        return f"was taken {after_s:.2f} s after the signal, and is {ending}"
    if ending in (Ending.WHOLE, Ending.QUEUED):
        return None
    taken = "" if after_s is None else f", taken {after_s:+.3f} s from the signal"
    if ending is Ending.RETRYABLE and job.ended_at is not None:
        failed_s = job.ended_at - round_.signalled_at
        was_in_transit = after_s is not None and after_s > -TRANSIT_S
        if was_in_transit or failed_s > round_.grace_s - TRANSIT_S:
            return None
        return f"failed {failed_s:+.2f} s from the signal, before the grace was over{taken}"
    return f"is {ending}{taken}: {details(job)}"


def _add_times(report: Report, rounds: list[Round]) -> None:
    ended = {kind: [r for r in rounds if r.kind is kind and r.status is not None] for kind in Kind}
    loaded = ended[Kind.FITS] + ended[Kind.CUT]
    for title, seconds in (
        ("exit after the last answer", [r.exited_at - r.last_answer for r in loaded]),
        ("exit of the idle", [r.exited_at - r.signalled_at for r in ended[Kind.IDLE]]),
        ("exit after a second signal", [r.exited_at - r.signalled_at for r in ended[Kind.TWICE]]),
    ):
        report.add_goal(title, seconds, share=1, limit=GOAL_S)
