"""Cancels at random moments: the slot is freed immediately and nothing more is posted."""

import asyncio
import json
import random
import time
from argparse import Namespace
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from support.processes.background import HUNG_S
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report
from chaos.workload import (
    Ending,
    ending_of,
    job_input,
    long_job,
    start_watched_endpoint,
    wait_until_running,
)
from emulator import Action, Call, Fault, Job, Status, faults_that_delay_posts

POST_DELAYS_S = (0.0, 0.05)
GOAL_S = 0.1
SHORT_PARAMS: dict[str, Any] = {"max_tokens": 1}


class Moment(StrEnum):
    """When a job is cancelled."""

    TAKEN = "just taken"
    COMPUTING = "before its first post"
    STREAMING = "mid-stream"
    HANGING = "during a post that hangs"
    ENDED = "while its result is posted"


# The call that hangs at each of these moments.
HANGING_CALLS = {Moment.HANGING: Call.STREAM, Moment.ENDED: Call.DONE}


@dataclass
class Findings:
    """The findings of the scenario so far."""

    report: Report
    # Seconds until the slot was free, by the delay of a POST.
    free_s: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Label of each cancelled job and the time at which the next job was taken, by job id. It is
    # Unix time, as in the request log.
    cancelled_jobs: dict[str, tuple[str, float]] = field(default_factory=dict)


async def run(args: Namespace) -> Report:
    """Cancel jobs of a worker with one slot; a queued job's start shows when the slot is free."""
    findings = Findings(Report(f"cancel, {args.cancels} cancels, seed {args.seed}"))
    requests, log = args.logs / "cancel-requests.jsonl", args.logs / "cancel.log"
    environ = {**WORKER, "MAX_CONCURRENCY": "1"}
    async with start_watched_endpoint(environ, log, request_log=requests) as endpoint:
        for number in range(args.cancels):
            rng = random.Random(f"{args.seed}/{number}")
            await _cancel_one(f"cancel {number}", rng, endpoint, findings)
        # Time for POSTs that should not arrive.
        await asyncio.sleep(2)
    _check_posts(findings, requests)
    _add_figures(findings)
    return findings.report


async def _cancel_one(
    name: str, rng: random.Random, endpoint: EmulatedEndpoint, findings: Findings
) -> None:
    moment, delay_s = rng.choice(list(Moment)), rng.choice(POST_DELAYS_S)
    faults, queue = endpoint.emulator.faults, endpoint.emulator.queue
    for fault in faults_that_delay_posts(delay_s):
        faults.add(fault)
    job = await _start_job(moment, rng, endpoint)
    next_job = endpoint.submit(job_input("Hi", SHORT_PARAMS, raw=True, stream=False))
    cancelled_at = time.monotonic()
    queue.cancel(job)
    await next_job.wait_for_end(HUNG_S)
    # Clearing the faults earlier would reset a hanging POST.
    faults.clear()
    name = f"{name} ({moment}, {1000 * delay_s:.0f} ms a POST)"
    ending = ending_of(next_job)
    findings.report.check(ending is Ending.WHOLE, f"{name}: the next job is {ending}")
    if job.status is not Status.CANCELLED:
        return  # the job ended before the cancel
    if next_job.started_at is not None:
        free_s = next_job.started_at - cancelled_at
        findings.report.check(free_s >= 0, f"{name}: two jobs are in one slot")
        findings.free_s[delay_s].append(free_s)
        free_at = time.time() - (time.monotonic() - next_job.started_at)
        findings.cancelled_jobs[job.id] = name, free_at


async def _start_job(moment: Moment, rng: random.Random, endpoint: EmulatedEndpoint) -> Job:
    """Start a job and wait for the moment at which to cancel it."""
    faults = endpoint.emulator.faults
    if moment in HANGING_CALLS:
        faults.add(Fault(on=HANGING_CALLS[moment], do=Action.HANG, calls=1))
    if moment is Moment.ENDED:
        job = endpoint.submit(job_input("Hi", SHORT_PARAMS, raw=rng.random() < 0.5, stream=False))
    else:
        streams = moment in (Moment.STREAMING, Moment.HANGING)
        job = endpoint.submit(long_job(rng, stream=streams))
    chunks = rng.randint(1, 6) if moment is Moment.STREAMING else 0
    await wait_until_running(job, chunks)
    while any(fault.do is Action.HANG for fault in faults.list_active()):
        await asyncio.sleep(0.001)  # until the job's POST hangs
    longest_s = {Moment.TAKEN: 0.01, Moment.COMPUTING: 0.3}.get(moment, 0.1)
    await asyncio.sleep(rng.uniform(0, longest_s))
    return job


def _check_posts(findings: Findings, requests: Path) -> None:
    """Check that no POST for a cancelled job began after the next job was taken."""
    for line in requests.read_text().splitlines():
        request = json.loads(line)
        job_id = request["path"].split("?")[0].rsplit("/", 1)[-1]
        if request["method"] == "POST" and job_id in findings.cancelled_jobs:
            name, free_at = findings.cancelled_jobs[job_id]
            findings.report.check(request["at"] <= free_at, f"{name}: posted after it")


def _add_figures(findings: Findings) -> None:
    for delay_s, free_s in sorted(findings.free_s.items()):
        findings.report.add_goal(
            f"slot free with {1000 * delay_s:.0f} ms a POST", free_s, 0.99, GOAL_S
        )
