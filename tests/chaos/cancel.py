"""Cancels at random moments: the slot is free at once, and nothing more is posted."""

import asyncio
import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from support.processes.background import HUNG_S
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report, percentile
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
class Cancelled:
    """A job that was cancelled."""

    name: str
    job: Job
    free_at: float  # when the next job was taken, by the clock of the request log (Unix time)
    posts_later: int = 0  # for it, which began after that


@dataclass
class State:
    """What the scenario has found so far."""

    report: Report
    free_s: dict[tuple[Moment, float], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    cancelled: list[Cancelled] = field(default_factory=list)
    late: int = 0  # cancels that came after their job's end


async def run(cancels: int, seed: int, folder: Path) -> Report:
    """Cancel so many jobs of a worker with one slot; a job that waits shows when it is free."""
    state = State(Report(f"cancel, {cancels} cancels, seed {seed}"))
    requests = folder / "cancel-requests.jsonl"
    environ = {**WORKER, "MAX_CONCURRENCY": "1"}
    async with lasting_endpoint(environ, folder / "cancel.log", request_log=requests) as endpoint:
        for number in range(cancels):
            rng = random.Random(f"{seed}/{number}")
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
    if job.status is not Status.CANCELLED:
        state.late += 1
        return
    name = f"{name} ({moment}, {1000 * delay_s:.0f} ms a POST)"
    ending = ending_of(following)
    state.report.check(holds=ending is Ending.WHOLE, otherwise=f"{name}: the next job is {ending}")
    if following.started_at is not None:
        free_s = following.started_at - cancelled_at
        state.report.check(holds=free_s >= 0, otherwise=f"{name}: two jobs are in one slot")
        state.free_s[moment, delay_s].append(free_s)
        free_at = time.time() - (time.monotonic() - following.started_at)
        state.cancelled.append(Cancelled(name, job, free_at))


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
    cancelled = {cancelled.job.id: cancelled for cancelled in state.cancelled}
    for line in requests.read_text().splitlines():
        request = json.loads(line)
        job_id = request["path"].split("?")[0].rsplit("/", 1)[-1]
        if request["method"] == "POST" and job_id in cancelled:
            cancelled[job_id].posts_later += request["at"] > cancelled[job_id].free_at
    for job in state.cancelled:
        posts = job.posts_later
        state.report.check(holds=not posts, otherwise=f"{job.name}: {posts} posts after it")


def _add_figures(state: State) -> None:
    report = state.report
    for delay_s in POST_DELAYS_S:
        free_s = [s for (_, of), values in state.free_s.items() if of == delay_s for s in values]
        report.goal(f"slot free with {1000 * delay_s:.0f} ms a POST", free_s, 0.99, GOAL_S)
    for moment in Moment:
        free_s = [s for (of, _), values in state.free_s.items() if of is moment for s in values]
        figure = f"{len(free_s)} {moment} p99 {1000 * percentile(free_s, 0.99):.0f} ms"
        report.figures.append(figure)
    if state.late:
        report.figures.append(f"{state.late} came too late")
