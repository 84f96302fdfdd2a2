"""Measures the loop between the platform's queue and the engine, in three parts.

    python benchmarks/loop.py [--only nothing,auto,flat] [--rounds 3] [--json FILE]
        [--limits auto 300] [--jobs 20000] [--model .models/demo]

The platform is an emulator in this process. Workers are started as in production, with the demo
model, whose steps take almost no time; with any real model, the loop has a smaller share. The sides
alternate. The benchmark prints figures and goals; a missed goal does not change the exit status.
`compare.py` measures an idle worker and a full one.

nothing: 64 callers whose jobs are answered immediately by an engine that computes nothing. It
measures jobs per second and the worker's CPU time: the whole loop without the engine.

auto: MAX_CONCURRENCY=auto against 300, or the two values of --limits, with 8 slots in each engine.
First, 64 equal jobs are submitted together to two idle workers: the time until the last has ended
(<= 0.6 x). Both engines compute up to 8 concurrent requests in steps of a fixed duration
(fixed_step.py), so that two workers on one machine don't slow each other down. So this measures how
the jobs are distributed. Then, 64 callers use one worker with its real engine: jobs per second
(>= 0.98 x).

flat: thousands of small jobs, 32 concurrently. It measures resident memory and open files of the
worker's process after every 1,000 jobs, their seconds and CPU seconds, and the ratio of the last
1,000 to the first (<= 1.05 x).
"""

import argparse
import asyncio
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import bench
import psutil
import streaming
from endpoint import Endpoint, JobLoad, start_endpoint

from emulator import Options
from proof.measure.comparison import turns
from proof.measure.processes import Lost

CALLERS = 64
# nothing: a worker whose engine immediately answers any ordinary prompt with one token.
NOTHING_JOBS = 2_000  # per round
NOTHING_WORKER = (sys.executable, "-u", str(Path(streaming.__file__)), "--worker")
# auto: goals relative to the second limit.
SLOTS = 8
AUTO_JOBS = 64
MAKESPAN_GOAL = 0.6
THROUGHPUT_GOAL = 0.98
FIXED_STEP = {
    "PYTHONPATH": str(bench.ROOT / "benchmarks"),
    "LOGITS_PROCESSORS": "fixed_step:FixedStep",
}
# flat: the goal is relative to the first block.
BLOCK_JOBS = 1_000
IN_FLIGHT = 32
FLAT_GOAL = 1.05
# Seconds. The emulator runs in this process, so its stored jobs must not grow, either.
RETENTION_S = 1.0


async def measure_nothing(args: Namespace) -> dict[str, Any]:
    """Measure jobs per second, and the CPU times of the worker and of platform and callers."""
    rates: list[float] = []
    cores: dict[str, list[float]] = {"worker": [], "platform and callers": []}
    async with start_endpoint({}, NOTHING_WORKER) as endpoint:
        processes = (psutil.Process(endpoint.processes[0].pid), psutil.Process())
        await endpoint.load(CALLERS, CALLERS, tokens=1)
        for _ in range(args.rounds):
            before_s = [cpu_s(process) for process in processes]
            load = await endpoint.load(NOTHING_JOBS, CALLERS, tokens=1)
            rates.append(load.rate)
            for name, process, before in zip(cores, processes, before_s, strict=True):
                cores[name].append((cpu_s(process) - before) / load.seconds)
    used = ", ".join(f"{name} {median(values):.2f}" for name, values in cores.items())
    print(f"  {median(rates):,.0f} jobs/s; cores: {used}")
    return {"jobs_per_s": rates, "cores": cores}


async def measure_auto(args: Namespace) -> dict[str, Any]:
    # Equal jobs in fixed steps end eight at a time. 32 jobs for each worker take four times as long
    # as one job. 33 jobs for one of them take five times as long, which is 0.62 of the time that
    # one worker needs for all.
    pairs = await compare_limits(args, workers=2, count=AUTO_JOBS)
    makespans = {limit: [load.seconds for load in rounds] for limit, rounds in pairs.items()}
    for limit, rounds in pairs.items():
        takers = (Counter(job.worker_id for job in load.jobs).values() for load in rounds)
        taken = ", ".join("+".join(map(str, shares)) for shares in takers)
        print(
            f"  2 workers, MAX_CONCURRENCY={limit:4} {AUTO_JOBS} jobs in "
            f"{median(makespans[limit]):6.2f} s; taken by each: {taken}"
        )
    makespan_ratio = median_ratio(args.limits, makespans)
    print(f"  makespan: {verdict(makespan_ratio, MAKESPAN_GOAL)}")

    # One worker with its real engine, and more callers than slots.
    single = await compare_limits(args, workers=1, count=6 * AUTO_JOBS)
    rates = {limit: [load.rate for load in rounds] for limit, rounds in single.items()}
    for limit, values in rates.items():
        print(
            f"  1 worker,  MAX_CONCURRENCY={limit:4} "
            f"{median(values):6.1f} jobs/s, {AUTO_JOBS} callers"
        )
    rate_ratio = median_ratio(args.limits, rates)
    print(f"  throughput: {verdict(rate_ratio, THROUGHPUT_GOAL, least=True)}")
    return {
        "two_workers": {"makespan_s": makespans, "ratio": makespan_ratio},
        "one_worker": {"jobs_per_s": rates, "ratio": rate_ratio},
    }


async def compare_limits(args: Namespace, workers: int, count: int) -> dict[str, list[JobLoad]]:
    """Measure both limits alternately, on separate endpoints that are idle in between."""
    environ = {"MODEL_NAME": str(args.model), "MAX_NUM_SEQS": str(SLOTS)}
    if workers > 1:
        environ |= FIXED_STEP
    async with AsyncExitStack() as stack:
        sides = {}
        for limit in args.limits:
            running = start_endpoint({**environ, "MAX_CONCURRENCY": limit}, workers=workers)
            endpoint = await stack.enter_async_context(running)
            sides[limit] = partial(endpoint.load, count, AUTO_JOBS, args.auto_tokens)
        measured: dict[str, list[JobLoad]] = {limit: [] for limit in sides}
        for number, limit in turns(sides, args.rounds, warm_ups=1):
            load = await sides[limit]()
            if number >= 0:
                measured[limit].append(load)
        return measured


def median_ratio(limits: Sequence[str], figures: Mapping[str, Sequence[float]]) -> float:
    """Return the median over the rounds of the ratio of the first limit to the second."""
    first, second = (figures[limit] for limit in limits)
    return median(ours / theirs for ours, theirs in zip(first, second, strict=True))


@dataclass(frozen=True)
class Block:
    """The cost of a thousand jobs, and the resources of the worker's process after them."""

    seconds: float
    cpu_s: float  # of the worker's process, without the engine's core
    memory_mb: float  # resident
    open_files: float


async def measure_flat(args: Namespace) -> dict[str, Any]:
    """Measure blocks of jobs, and the ratios of the last to the first."""
    options = Options(run_retention_s=RETENTION_S)
    environ = {"MODEL_NAME": str(args.model)}
    async with start_endpoint(environ, options=options) as endpoint:
        print("      jobs  seconds  CPU s  memory MB  open files")
        blocks = []
        for number in range(1, args.jobs // BLOCK_JOBS + 1):
            block = await run_block(endpoint)
            blocks.append(block)
            print(
                f"  {number * BLOCK_JOBS:8,} {block.seconds:8.2f} {block.cpu_s:6.2f} "
                f"{block.memory_mb:10.1f} {block.open_files:11.0f}",
                flush=True,
            )
    ratios = {
        field.name: getattr(blocks[-1], field.name) / getattr(blocks[0], field.name)
        for field in fields(Block)
    }
    for name, ratio in ratios.items():
        print(f"  {name:10} last / first: {verdict(ratio, FLAT_GOAL)}")
    return {"blocks": [asdict(block) for block in blocks], "ratios": ratios}


async def run_block(endpoint: Endpoint) -> Block:
    process = psutil.Process(endpoint.processes[0].pid)

    async def call(numbers: Iterator[int]) -> None:
        for number in numbers:
            await endpoint.answer(f"Job {number}", 1 + number % 4)

    start, cpu_start_s, waiting = time.monotonic(), cpu_s(process), iter(range(BLOCK_JOBS))
    await asyncio.gather(*(call(waiting) for _ in range(IN_FLIGHT)))
    seconds = time.monotonic() - start
    memory_mb = process.memory_info().rss / 2**20
    return Block(seconds, cpu_s(process) - cpu_start_s, memory_mb, process.num_fds())


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process without its descendants."""
    used = process.cpu_times()
    return float(used.user + used.system)


def verdict(ratio: float, goal: float, *, least: bool = False) -> str:
    """Return a ratio with its goal, which is a maximum unless ``least`` is set."""
    met = ratio >= goal if least else ratio <= goal
    return f"{ratio:.2f} x (goal {'>=' if least else '<='} {goal}: {'met' if met else 'missed'})"


PARTS = {
    "nothing": measure_nothing,
    "auto": measure_auto,
    "flat": measure_flat,
}


def part_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - PARTS.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(PARTS)}")
    return names


async def main(args: Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    # Workers have their own sessions, so they would survive this process.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print(bench.machine(), flush=True)
    figures = {}
    for part in args.only:
        print(f"{part}:", flush=True)
        figures[part] = await PARTS[part](args)
        bench.write_json(args.json, figures)


if __name__ == "__main__":
    parser = bench.options(__doc__, writes_json=True)
    parser.add_argument("--only", type=part_names, default=list(PARTS), metavar="PARTS")
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument(
        "--limits", nargs=2, default=["auto", "300"], help="auto: values of MAX_CONCURRENCY"
    )
    parser.add_argument("--auto-tokens", type=int, default=48, help="auto: tokens per answer")
    parser.add_argument("--jobs", type=int, default=20_000, help="flat: number of jobs")
    try:
        asyncio.run(main(parser.parse_args()))
    except Lost as lost:
        sys.exit(f"lost: {lost}")
    except asyncio.CancelledError:
        sys.exit("stopped")
    except TimeoutError:
        sys.exit("lost: a process did not answer in time")
