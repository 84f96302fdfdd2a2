"""Measures the loop between the platform's queue and the engine, in five parts.

    python benchmarks/loop.py [--only idle,full,nothing,auto,flat] [--rounds 3] [--json FILE]
        [--before CHECKOUT] [--limits auto 300] [--jobs 20000] [--model .models/demo]

The platform is an emulator in this process. Workers are started as in production, with the demo
model, whose steps take almost no time; with any real model, the loop has a smaller share. The sides
alternate. The benchmark prints figures and goals; a missed goal does not change the exit status.
Needs Linux: all processes read the same monotonic clock.

idle: sequential jobs after random pauses. It measures how long a job waits in the queue, and how
long it takes from there to the engine (p99 <= 10 ms), where a thread of the worker watches the
engine's number of requests. It also compares the time to the first token of a streamed chat
completion, through the platform's gateway, with vLLM's own server with the same engine settings
(<= 1.5 x).

full: 64 callers who submit the next job when their job has ended, on 64 slots, with answers of 8
tokens. It measures jobs per second, the duration of a job, and the longest time in which a job
waited although no job was taken (there must be no pauses of a second). With --before, it alternates
with the worker of another checkout.

nothing: 64 callers whose jobs are answered immediately by an engine that computes nothing. It
measures jobs per second and the worker's CPU time: the whole loop without the engine.

auto: MAX_CONCURRENCY=auto against 300, or the two values of --limits, with 8 slots in each engine.
First, 64 equal jobs are submitted together to two idle workers: the time until the last has ended
(<= 0.6 x). Both engines compute up to 8 concurrent requests in steps of a fixed duration
(loop_parts/steps.py), so that two workers on one machine don't slow each other down. So this
measures how the jobs are distributed. Then, 64 callers use one worker with its real engine: jobs
per second (>= 0.98 x).

flat: thousands of small jobs, 32 concurrently. It measures resident memory and open files of the
worker's process after every 1,000 jobs, their seconds and CPU seconds, and the ratio of the last
1,000 to the first (<= 1.05 x).
"""

import argparse
import asyncio
import signal
import sys

import bench
from loop_parts import auto, flat, full, idle, nothing

from proof.measure import processes

PARTS = {
    "idle": idle.measure,
    "full": full.measure,
    "nothing": nothing.measure,
    "auto": auto.measure,
    "flat": flat.measure,
}


def part_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - PARTS.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(PARTS)}")
    return names


async def main(args: argparse.Namespace) -> None:
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


def read_command_line() -> argparse.Namespace:
    parser = bench.options(__doc__, writes_json=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=part_names, default=list(PARTS), metavar="PARTS")
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument("--idle-jobs", type=int, default=200, help="idle: number of jobs")
    parser.add_argument("--idle-rounds", type=int, default=5, help="idle: rounds of 20 streams")
    parser.add_argument("--full-jobs", type=int, default=640, help="full: jobs per round")
    parser.add_argument(
        "--before", type=bench.path, metavar="CHECKOUT", help="full: another checkout"
    )
    parser.add_argument(
        "--limits", nargs=2, default=["auto", "300"], help="auto: values of MAX_CONCURRENCY"
    )
    parser.add_argument("--auto-tokens", type=int, default=48, help="auto: tokens per answer")
    parser.add_argument("--jobs", type=int, default=20_000, help="flat: number of jobs")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(read_command_line()))
    except processes.Lost as lost:
        sys.exit(f"lost: {lost}")
    except asyncio.CancelledError:
        sys.exit("stopped")
    except TimeoutError:
        sys.exit("lost: a process did not answer in time")
