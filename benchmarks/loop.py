"""Measures the loop between the platform's queue and the engine, in five parts.

    python benchmarks/loop.py [--only idle,full,nothing,auto,flat] [--rounds 3] [--json FILE]
        [--before CHECKOUT] [--limits auto 300] [--jobs 20000] [--model .models/demo]

The platform is an emulator in this process; workers are started as in production, with the demo
model, whose steps take almost no time: with any real model a loop costs less. Sides alternate.
Figures only, with their goals: nothing fails for its time. Needs Linux: all processes read the same
monotonic clock.

idle: jobs one after the other, after random pauses. How long a job waits to be taken, and how long
it is on its way from there to the engine (p99 <= 10 ms), where a thread of the worker watches the
engine's count of requests. Then the time to the first token of a streamed chat completion, through
the platform's gateway, against vLLM's own server with the same engine settings (<= 1.5 x).

full: 64 callers who submit the next job when theirs has ended, on 64 slots, answers of 8 tokens.
Jobs per second, a job's time, and the longest time in which a job waited and none was taken (no
steps of a second). With --before, by turns with the worker of another checkout.

nothing: 64 callers, whose jobs are answered at once by an engine that computes nothing. Jobs per
second, and what the worker takes of it: all of the loop, and none of the engine.

auto: MAX_CONCURRENCY=auto against 300, or the two of --limits, with 8 slots in each engine. First
64 equal jobs at once for two idle workers: the time until the last has ended (<= 0.6 x). Both
engines compute up to 8 requests at once in steps that last a fixed time (loop_parts/steps.py), so
that two workers on one machine don't slow each other down: what is measured is how the jobs are
distributed. Then 64 callers on one worker with its engine as it is: jobs per second (>= 0.98 x).

flat: thousands of small jobs, 32 in flight. Resident memory and open files of the worker's process
after every 1,000, their seconds and CPU seconds; what the last 1,000 are to the first (<= 1.05 x).
"""

import argparse
import asyncio
import signal
import sys

import bench
from loop_parts import auto, flat, full, idle, nothing

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
    # Workers are sessions of their own: they would outlive this process.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print(bench.machine(), flush=True)
    figures = {}
    for part in args.only:
        print(f"{part}:", flush=True)
        figures[part] = await PARTS[part](args)
        bench.keep(args.json, figures)


def read_command_line() -> argparse.Namespace:
    parser = bench.options(__doc__, keeps=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=part_names, default=list(PARTS), metavar="PARTS")
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument("--idle-jobs", type=int, default=200, help="in part idle")
    parser.add_argument("--idle-rounds", type=int, default=5, help="in part idle, of 20 streams")
    parser.add_argument("--full-jobs", type=int, default=640, help="in a round of part full")
    parser.add_argument("--before", type=bench.path, metavar="CHECKOUT", help="for part full")
    parser.add_argument("--limits", nargs=2, default=["auto", "300"], help="for part auto")
    parser.add_argument("--auto-tokens", type=int, default=48, help="of an answer in part auto")
    parser.add_argument("--jobs", type=int, default=20_000, help="in part flat")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(read_command_line()))
    except bench.Lost as lost:
        sys.exit(f"lost: {lost}")
    except asyncio.CancelledError:
        sys.exit("stopped")
    except TimeoutError:
        sys.exit("lost: a process did not answer in time")
