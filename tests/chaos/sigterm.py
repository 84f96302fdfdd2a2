"""SIGTERM at random moments: what fits the grace is answered, nothing is lost, nothing is left."""

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
from chaos.workload import Ending, counts, details, ending_of, known_job, long_job
from emulator import Job, Status

SLOTS = 16
WAITING = 8  # jobs in the platform's queue, at least
SHORT_GRACE_S, LONG_GRACE_S = 3, 25
LATEST_S = 2.0  # the signal comes so long after the first job at most
# Jobs still arrive after the signal: so long, in seconds.
ARRIVING_S = 0.5
# Of a message between the worker and the platform on a busy machine, in seconds: a job that was
# handed over this short after the signal may have been on its way, and a job that fails this
# short before the end of the grace was in it to the end.
ON_ITS_WAY_S = 0.25
GONE_S = 5.0
GOAL_S = 1.0  # from the last answer, or from the signal to an idle worker, to the exit


class Kind(StrEnum):
    """A round's load, and what is sent to the worker."""

    FITS = "all fit"  # a long grace, and jobs that end within it
    CUT = "some are cut"  # a short grace, which some jobs don't fit
    IDLE = "idle"
    TWICE = "twice"  # a second signal while jobs that take long run


@dataclass
class Round:
    """A worker's end. Times are time.monotonic's."""

    name: str
    kind: Kind
    jobs: list[tuple[Job, str | None]] = field(default_factory=list)  # with their whole texts
    signalled: float = 0.0
    exited: float = 0.0
    status: int | None = None
    left: list[int] = field(default_factory=list)  # processes

    @property
    def grace_s(self) -> int:
        return LONG_GRACE_S if self.kind is Kind.FITS else SHORT_GRACE_S

    @property
    def last_answer(self) -> float:
        ended = [job.ended_at for job, _ in self.jobs if job.ended_at is not None]
        return max([self.signalled, *ended])


async def run(args: Namespace) -> Report:
    """End so many workers, every tenth of them idle, and every tenth by two signals."""
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
    report.figures.append(f"{endings[Ending.OPEN]} lost of {endings.total()}, {counts(endings)}")
    _add_times(report, ended)
    return report


async def _run_round(round_: Round, rng: random.Random, log: Path) -> None:
    environ = {
        **WORKER,
        "MAX_CONCURRENCY": str(SLOTS),
        "SHUTDOWN_GRACE_S": str(round_.grace_s),
    }
    async with emulated_endpoint(environ, log, take_poll_s=20) as endpoint:
        load = asyncio.create_task(_load(round_, rng, endpoint))
        await asyncio.sleep(rng.uniform(0, LATEST_S))
        round_.signalled = time.monotonic()
        endpoint.worker.process.terminate()
        if round_.kind is Kind.TWICE:
            await asyncio.sleep(rng.uniform(0, 1))
            round_.signalled = time.monotonic()
            endpoint.worker.process.terminate()
        with suppress(TimeoutError):
            ended = asyncio.to_thread(endpoint.worker.process.wait, HUNG_S / 2)
            round_.status = await ended
        round_.exited = time.monotonic()
        load.cancel()
        round_.left = await _left(endpoint)


async def _left(endpoint: EmulatedEndpoint) -> list[int]:
    """Find the processes that are left; one that was killed may take a moment to be gone."""
    deadline = time.monotonic() + GONE_S
    while (left := endpoint.worker.session()) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return left


async def _load(round_: Round, rng: random.Random, endpoint: EmulatedEndpoint) -> None:
    """Keep jobs waiting until a while after the signal."""
    jobs, kind = round_.jobs, round_.kind

    def next_job() -> tuple[dict[str, Any], str | None]:
        if kind is Kind.TWICE or (kind is Kind.CUT and rng.random() < 0.25):
            return long_job(rng, stream=rng.random() < 0.5), None
        return known_job(rng)

    while kind is not Kind.IDLE:
        if round_.signalled and time.monotonic() > round_.signalled + ARRIVING_S:
            return
        waiting = sum(job.status is Status.IN_QUEUE for job, _ in jobs[-2 * WAITING :])
        for _ in range(WAITING - waiting):
            job_input, text = next_job()
            jobs.append((endpoint.submit(job_input), text))
        await asyncio.sleep(0.005)


def _check(round_: Round, report: Report, endings: Counter[str]) -> None:
    name = f"{round_.name} ({round_.kind})"
    report.check(not round_.left, f"{name}: {len(round_.left)} processes are left")
    if round_.kind is Kind.TWICE:
        # What ran is lost, as when a container is taken away.
        report.check(round_.status is not None, f"{name}: two signals don't end it")
        return
    report.check(round_.status == 0, f"{name}: exit status {round_.status}")
    for job, text in round_.jobs:
        ending = ending_of(job, text)
        endings[ending] += 1
        if wrong := _what_is_wrong(round_, job, ending):
            report.broken.append(f"{name}: {job.id} {wrong}")


def _what_is_wrong(round_: Round, job: Job, ending: Ending) -> str | None:
    after_s = None if job.started_at is None else job.started_at - round_.signalled
    if after_s is not None and after_s > ON_ITS_WAY_S:
        return f"was taken {after_s:.2f} s after the signal, and is {ending}"
    if ending in (Ending.WHOLE, Ending.QUEUED):
        return None
    taken = "" if after_s is None else f", taken {after_s:+.3f} s from the signal"
    if ending is Ending.RETRYABLE and job.ended_at is not None:
        failed_s = job.ended_at - round_.signalled
        was_on_its_way = after_s is not None and after_s > -ON_ITS_WAY_S
        if was_on_its_way or failed_s > round_.grace_s - ON_ITS_WAY_S:
            return None
        return f"failed {failed_s:+.2f} s from the signal, before the grace was over{taken}"
    return f"is {ending}{taken}: {details(job)}"


def _add_times(report: Report, rounds: list[Round]) -> None:
    ended = {kind: [r for r in rounds if r.kind is kind and r.status is not None] for kind in Kind}
    loaded = ended[Kind.FITS] + ended[Kind.CUT]
    for what, since in (
        ("exit after the last answer", [r.exited - r.last_answer for r in loaded]),
        ("exit of the idle", [r.exited - r.signalled for r in ended[Kind.IDLE]]),
        ("exit after a second signal", [r.exited - r.signalled for r in ended[Kind.TWICE]]),
    ):
        report.goal(what, since, share=1, most=GOAL_S)
