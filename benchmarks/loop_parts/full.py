"""Callers in a closed loop on a worker with the same number of slots."""

import statistics
from argparse import Namespace
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import bench

from loop_parts.endpoint import Load, alternate, handler_command, percentiles, start_endpoint

CALLERS = 64
TOKENS = 8
ENVIRON = {"MAX_CONCURRENCY": str(CALLERS), "MAX_NUM_SEQS": str(CALLERS)}


async def measure(args: Namespace) -> dict[str, Any]:
    """Measure this checkout, alternately with another one if that is set."""
    roots = {"now": bench.ROOT, **({"before": args.before} if args.before else {})}
    environ = {**ENVIRON, "MODEL_NAME": str(args.model)}
    async with AsyncExitStack() as stack:
        sides = {}
        for side, root in roots.items():
            running = start_endpoint(environ, handler_command(root))
            endpoint = await stack.enter_async_context(running)
            sides[side] = partial(endpoint.load, args.full_jobs, CALLERS, TOKENS)
        loads = await alternate(sides, args.rounds)
    for side, rounds in loads.items():
        print_row(side, rounds)
    rates = {side: [load.rate for load in rounds] for side, rounds in loads.items()}
    if args.before:
        pairs = zip(rates["now"], rates["before"], strict=True)
        print(f"  jobs/s, now / before: {statistics.median(a / b for a, b in pairs):.2f} x")
    return {
        side: {
            "jobs_per_s": rates[side],
            "job_ms": [load.times_ms for load in rounds],
            "longest_gap_ms": [load.longest_gap_ms for load in rounds],
        }
        for side, rounds in loads.items()
    }


def print_row(side: str, rounds: list[Load]) -> None:
    times = [ms for load in rounds for ms in load.times_ms]
    print(
        f"  {side:8} {statistics.median(load.rate for load in rounds):6.1f} jobs/s, a job "
        f"{percentiles(times)}, "
        f"longest gap between takes {max(load.longest_gap_ms for load in rounds):7.1f} ms"
    )
