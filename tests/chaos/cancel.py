"""Cancels at random moments: the slot is free at once, and nothing more is posted."""

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
from chaos.watch import lasting_endpoint
from chaos.workload import Ending, ending_of, job_input, long_job, runs
from emulator import Action, Call, Fault, Job, Status, slow_link

POST_DELAYS_S = (0.0, 0.05)
GOAL_S = 0.1
SHORT: dict[str, Any] = {"max_tokens": 1}


class Moment(StrEnum):
    """When a job is cancelled."""

    TAKEN = "just taken"
    COMPUTING = "before its first post"
    STREAMING = "mid-stream"
    HANGING = "during a post that hangs"
    ENDED = "while its result is posted"


# The call that hangs then.
HANGS = {Moment.HANGING: Call.STREAM, Moment.ENDED: Call.DONE}


@dataclass
class State:
    """What the scenario has found so far."""

    report: Report
    # By the delay of a post.
    free_s: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Names of cancelled jobs, and when the next one was taken: Unix time, as in the request log.
    cancelled: dict[str, tuple[str, float]] = field(default_factory=dict)


async def run(args: Namespace) -> Report:
    """Cancel so many jobs of a worker with one slot; a job that waits shows when it is free."""
    state = State(Report(f"cancel, {args.cancels} cancels, seed {args.seed}"))
    requests, log = args.logs / "cancel-requests.jsonl", args.logs / "cancel.log"
    environ = {**WORKER, "MAX_CONCURRENCY": "1"}
    async with lasting_endpoint(environ, log, request_log=requests) as endpoint:
        for number in range(args.cancels):
            rng = random.Random(f"{args.seed}/{number}")
            await _cancel_one(f"cancel {number}", rng, endpoint, state)
        # For posts that should not come.
        await asyncio.sleep(2)
    _check_posts(state, requests)
    _add_figures(state)
    return state.report


async def _cancel_one(
    name: str, rng: random.Random, endpoint: EmulatedEndpoint, state: State
) -> None:
    moment, delay_s = rng.choice(list(Moment)), rng.choice(POST_DELAYS_S)
    faults, queue = endpoint.emulator.faults, endpoint.emulator.queue
    for fault in slow_link(delay_s):
        faults.add(fault)
    job = await _started(moment, rng, endpoint)
    following = endpoint.submit(job_input("Hi", SHORT, raw=True, stream=False))
    cancelled_at = time.monotonic()
    queue.cancel(job)
    await following.wait_ended(HUNG_S)
    # Not before: a hanging post would be reset.
    faults.clear()
    name = f"{name} ({moment}, {1000 * delay_s:.0f} ms a POST)"
    ending = ending_of(following)
    state.report.check(ending is Ending.WHOLE, f"{name}: the next job is {ending}")
    if job.status is not Status.CANCELLED:
        return  # it had ended before
    if following.started_at is not None:
        free_s = following.started_at - cancelled_at
        state.report.check(free_s >= 0, f"{name}: two jobs are in one slot")
        state.free_s[delay_s].append(free_s)
        free_at = time.time() - (time.monotonic() - following.started_at)
        state.cancelled[job.id] = name, free_at


async def _started(moment: Moment, rng: random.Random, endpoint: EmulatedEndpoint) -> Job:
    """Start a job, and wait for the moment to cancel it."""
    faults = endpoint.emulator.faults
    if moment in HANGS:
        faults.add(Fault(on=HANGS[moment], do=Action.HANG, calls=1))
    if moment is Moment.ENDED:
        job = endpoint.submit(job_input("Hi", SHORT, raw=rng.random() < 0.5, stream=False))
    else:
        streams = moment in (Moment.STREAMING, Moment.HANGING)
        job = endpoint.submit(long_job(rng, stream=streams))
    chunks = rng.randint(1, 6) if moment is Moment.STREAMING else 0
    await runs(job, chunks)
    while any(fault.do is Action.HANG for fault in faults.active()):
        await asyncio.sleep(0.001)  # until it has met its post
    longest_s = {Moment.TAKEN: 0.01, Moment.COMPUTING: 0.3}.get(moment, 0.1)
    await asyncio.sleep(rng.uniform(0, longest_s))
    return job


def _check_posts(state: State, requests: Path) -> None:
    """Check that no post for a cancelled job began after the next job."""
    for line in requests.read_text().splitlines():
        request = json.loads(line)
        job_id = request["path"].split("?")[0].rsplit("/", 1)[-1]
        if request["method"] == "POST" and job_id in state.cancelled:
            name, free_at = state.cancelled[job_id]
            state.report.check(request["at"] <= free_at, f"{name}: posted after it")


def _add_figures(state: State) -> None:
    for delay_s, free_s in sorted(state.free_s.items()):
        state.report.goal(f"slot free with {1000 * delay_s:.0f} ms a POST", free_s, 0.99, GOAL_S)
