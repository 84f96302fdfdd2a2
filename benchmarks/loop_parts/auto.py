"""Compares MAX_CONCURRENCY=auto with 300: the distribution of jobs, and the cost for one worker."""

import statistics
from argparse import Namespace
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import bench

from loop_parts.endpoint import Load, alternate, start_endpoint, verdict

SLOTS = 8
JOBS = 64
MAKESPAN_GOAL = 0.6  # relative to the second limit
THROUGHPUT_GOAL = 0.98  # relative to the second limit
# See loop_parts.steps.
FIXED_STEP = {
    "PYTHONPATH": str(bench.ROOT / "benchmarks"),
    "LOGITS_PROCESSORS": "loop_parts.steps:FixedStep",
}


async def measure(args: Namespace) -> dict[str, Any]:
    return {"two_workers": await two_workers(args), "one_worker": await one_worker(args)}


async def two_workers(args: Namespace) -> dict[str, Any]:
    """Compare the time from the submission of many jobs to the end of the last one.

    Equal jobs in fixed steps end eight at a time. 32 jobs for each worker take four times as long
    as
    one job. 33 jobs for one of them take five times as long, which is 0.62 of the time that one
    worker
    needs for all.
    """
    loads = await compare(args, workers=2, count=JOBS, tokens=args.auto_tokens)
    makespans = {limit: [load.seconds for load in rounds] for limit, rounds in loads.items()}
    for limit, rounds in loads.items():
        median_s = statistics.median(makespans[limit])
        print(
            f"  2 workers, MAX_CONCURRENCY={limit:4} {JOBS} jobs in {median_s:6.2f} s; "
            f"taken by each: {', '.join(map(shares, rounds))}"
        )
    print(f"  makespan: {verdict(ratio(args, makespans), MAKESPAN_GOAL)}")
    return {"makespan_s": makespans, "ratio": ratio(args, makespans)}


async def one_worker(args: Namespace) -> dict[str, Any]:
    """Compare the throughput of one worker with its real engine and more callers than slots."""
    loads = await compare(args, workers=1, count=6 * JOBS, tokens=args.auto_tokens)
    rates = {limit: [load.rate for load in rounds] for limit, rounds in loads.items()}
    for limit, values in rates.items():
        print(
            f"  1 worker,  MAX_CONCURRENCY={limit:4} "
            f"{statistics.median(values):6.1f} jobs/s, {JOBS} callers"
        )
    print(f"  throughput: {verdict(ratio(args, rates), THROUGHPUT_GOAL, least=True)}")
    return {"jobs_per_s": rates, "ratio": ratio(args, rates)}


async def compare(args: Namespace, workers: int, count: int, tokens: int) -> dict[str, list[Load]]:
    """Measure both limits alternately, on separate endpoints that are idle in between."""
    environ = {"MODEL_NAME": str(args.model), "MAX_NUM_SEQS": str(SLOTS)}
    if workers > 1:
        environ |= FIXED_STEP
    async with AsyncExitStack() as stack:
        sides = {}
        for limit in args.limits:
            running = start_endpoint({**environ, "MAX_CONCURRENCY": limit}, workers=workers)
            endpoint = await stack.enter_async_context(running)
            sides[limit] = partial(endpoint.load, count, JOBS, tokens)
        return await alternate(sides, args.rounds)


def ratio(args: Namespace, figures: dict[str, list[float]]) -> float:
    """Return the median over the rounds of the ratio of the first limit to the second."""
    first, second = (figures[limit] for limit in args.limits)
    return statistics.median(ours / theirs for ours, theirs in zip(first, second, strict=True))


def shares(load: Load) -> str:
    """Return how many jobs each worker took."""
    return "+".join(map(str, Counter(job.worker_id for job in load.jobs).values()))
