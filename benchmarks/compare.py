"""Compares the worker, including the platform, with vLLM's own server and the bare engine.

    python benchmarks/compare.py [--rounds 3] [--model .models/demo] [--json FILE] [--others]
    python benchmarks/compare.py --read FILE [FILE ...]

The worker runs as in production with the local platform, which is a separate process. vLLM's server
has no platform between itself and the callers. The bare engine is called in its own process. All
have the same engine settings. Each round starts each side again, in alternating order. Callers,
platform and side share the machine; the table also shows their shares of it. The medians of the
rounds and their ratios count; figures of different machines can't be compared.

After the loads of the table, a round has a sweep from one caller to 128, and one longer stream
whose token arrivals are stored; the worker also streams with delayed POSTs. `--others` runs other
benchmarks of this folder once, for the rows that they measure. The table is Markdown; `--read`
prints it again from the files of one or several runs, whose rounds are combined.
`builder/plots.py` draws the same files.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import bench
from compare_parts import comparison as comparisons
from compare_parts.comparison import Comparison, Groups, Round
from compare_parts.figures import Load
from compare_parts.others import run_others
from compare_parts.rows import POST_DELAYS_MS, SWEEP, table
from compare_parts.sides import SIDES, StartSide, WorkerSide

# The loads of each side, in this order; the first one also warms up.
LOADS = {
    "warm-up": Load(callers=64, requests=128),
    "idle": Load(callers=1, requests=40),
    "16 streams": Load(callers=16, requests=160),
    "64 streams": Load(callers=64, requests=320),
    "64 whole": Load(callers=64, requests=320, stream=False),
}
# The number of requests is small enough that all of these loads take less than a minute.
LOADS |= {name: Load(callers, requests=max(8, 2 * callers)) for callers, name in SWEEP.items()}
ONE_STREAM = Load(callers=1, requests=1, tokens=200)
SLOW_LINK = Load(callers=1, requests=5, tokens=100)


async def measure(start_side: StartSide, model: Path) -> Round:
    """Start a side, and measure it with all loads."""
    results: Groups = {}
    async with start_side(model) as side:
        for name, load in LOADS.items():
            results[name] = (await side.run(load)).figures.as_json()
        results["start"] = {"first_s": side.first_s, "memory_mib": side.memory_mib()}
        stream = await side.run(ONE_STREAM)
        if not isinstance(side, WorkerSide):
            return Round(results, stream.arrivals)
        results["link"] = await measure_link(side)
        return Round(results, stream.arrivals, side.phases)


async def measure_link(side: WorkerSide) -> dict[str, float]:
    """Return the time of 100 tokens with delayed POSTs, relative to the time without delay."""
    latencies_ms = {}
    for delay_ms in (0, *POST_DELAYS_MS):
        await side.delay_posts(delay_ms / 1000)
        latencies_ms[delay_ms] = (await side.run(SLOW_LINK)).figures.latency_p50
    return {
        f"{delay_ms} ms": latencies_ms[delay_ms] / latencies_ms[0] for delay_ms in POST_DELAYS_MS
    }


async def measure_all(arguments: argparse.Namespace) -> dict[str, list[Round]]:
    results: dict[str, list[Round]] = {name: [] for name in arguments.only}
    for number in range(arguments.rounds):
        for name in sorted(arguments.only, reverse=number % 2 == 0):
            results[name].append(await measure(SIDES[name], arguments.model))
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
    return results


def compare(arguments: argparse.Namespace) -> Comparison:
    machine = bench.machine()
    other_figures = [run_others(arguments.model)] if arguments.others else []
    rounds = asyncio.run(measure_all(arguments))
    return Comparison([machine], arguments.model.name, rounds, other_figures)


def main(arguments: argparse.Namespace) -> None:
    if arguments.read:
        comparison = comparisons.read(arguments.read)
    else:
        comparison = compare(arguments)
        bench.write_json(arguments.json, comparisons.FILE_FORMAT.dump_python(comparison))
    print(table(comparison.sides()))
    rounds = max(map(len, comparison.rounds.values()))
    print(f"\nMedians of {rounds}; model {comparison.model}; {'; '.join(comparison.machine)}")


if __name__ == "__main__":
    parser = bench.options(__doc__, writes_json=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument("--only", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    parser.add_argument(
        "--others", action="store_true", help="also run other benchmarks for their rows"
    )
    parser.add_argument(
        "--read",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print the table of files instead of measuring",
    )
    main(parser.parse_args())
