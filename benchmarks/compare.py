"""Compares the worker, whole platform included, with vLLM's own server and the bare engine.

    python benchmarks/compare.py [--rounds 3] [--model .models/demo] [--json FILE] [--others]
    python benchmarks/compare.py --read FILE [FILE ...]

The worker runs as in production at the local platform, which is a process of its own; vLLM's server
has no platform between itself and the callers; the bare engine is called in its own process. All
have the same engine settings. Each round starts each side anew, in alternating order. Callers,
platform and side share the machine: what each takes of it is in the table, too. The medians of the
rounds, and their ratios, count; the figures of one machine say nothing of another.

After the loads of the table a round has a sweep from one caller to 128, and one longer stream,
whose tokens' arrivals are kept; the worker also streams with its POSTs delayed. `--others` runs
other benchmarks of this folder once, for the rows that they measure. The table is Markdown;
`--read` prints it again, of the files of one or of several runs taken together, and
`builder/plots.py` draws them.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import bench
from compare_parts import kept
from compare_parts.figures import Load
from compare_parts.kept import Comparison, Groups, Round
from compare_parts.others import run_others
from compare_parts.rows import POST_DELAYS_MS, SWEEP, table
from compare_parts.sides import SIDES, Started, WorkerSide

# What is measured on each side, in this order: the first one also warms up.
LOADS = {
    "warm-up": Load(callers=64, requests=128),
    "idle": Load(callers=1, requests=40),
    "16 streams": Load(callers=16, requests=160),
    "64 streams": Load(callers=64, requests=320),
    "64 whole": Load(callers=64, requests=320, stream=False),
}
# So few requests that all of them take less than a minute.
LOADS |= {name: Load(callers, requests=max(8, 2 * callers)) for callers, name in SWEEP.items()}
ONE_STREAM = Load(callers=1, requests=1, tokens=200)
SLOW_LINK = Load(callers=1, requests=5, tokens=100)


async def measure(started: Started, model: Path) -> Round:
    """Start a side, and measure it under all loads."""
    found: Groups = {}
    async with started(model) as side:
        for name, load in LOADS.items():
            found[name] = (await side.run(load)).figures.as_json()
        found["start"] = {"first_s": side.first_s, "memory_mib": side.memory_mib()}
        stream = await side.run(ONE_STREAM)
        if not isinstance(side, WorkerSide):
            return Round(found, stream.arrivals)
        found["link"] = await measure_link(side)
        return Round(found, stream.arrivals, side.phases)


async def measure_link(side: WorkerSide) -> dict[str, float]:
    """Return what 100 tokens take with delayed POSTs, beside what they take without."""
    took = {}
    for delay_ms in (0, *POST_DELAYS_MS):
        await side.delay_posts(delay_ms / 1000)
        took[delay_ms] = (await side.run(SLOW_LINK)).figures.latency_p50
    return {f"{delay_ms} ms": took[delay_ms] / took[0] for delay_ms in POST_DELAYS_MS}


async def measure_all(arguments: argparse.Namespace) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {name: [] for name in arguments.only}
    for number in range(arguments.rounds):
        for name in sorted(arguments.only, reverse=number % 2 == 0):
            found[name].append(await measure(SIDES[name], arguments.model))
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
    return found


def compare(arguments: argparse.Namespace) -> Comparison:
    machine = bench.machine()
    others = [run_others(arguments.model)] if arguments.others else []
    rounds = asyncio.run(measure_all(arguments))
    return Comparison([machine], arguments.model.name, rounds, others)


def main(arguments: argparse.Namespace) -> None:
    if arguments.read:
        comparison = kept.read(arguments.read)
    else:
        comparison = compare(arguments)
        bench.keep(arguments.json, kept.FILE.dump_python(comparison))
    print(table(comparison.sides()))
    rounds = max(map(len, comparison.rounds.values()))
    print(f"\nMedians of {rounds}; model {comparison.model}; {'; '.join(comparison.machine)}")


if __name__ == "__main__":
    parser = bench.options(__doc__, keeps=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument("--only", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    parser.add_argument("--others", action="store_true", help="the rows of other benchmarks, too")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="measure nothing")
    main(parser.parse_args())
