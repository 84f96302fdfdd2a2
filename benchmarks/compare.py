"""Compares the worker, including the platform, with vLLM's own server and the bare engine.

    python benchmarks/compare.py [--rounds 3] [--model .models/demo] [--json FILE] [--others]
        [--only worker server bare rust sdk-1.12 sdk-2.0] [--conditions one-thread|default]
    python benchmarks/compare.py --read FILE [FILE ...]

The worker runs as in production with the local platform, which is a separate process. vLLM's server
has no platform between itself and the callers. The bare engine is called in its own process. All
have the same engine settings. Each round starts each side again, in alternating order. Callers,
platform and side share the machine; the table also shows their shares of it. The medians of the
rounds and their ratios count; figures of different machines can't be compared.

By default all sides have one thread, one process in addition to the core, and few log lines. With
`--conditions default` each side chooses them itself; only the options of the engine are the same.
More sides are vLLM's server with its front end in Rust (`--only rust`; its program is in vLLM's
wheels for GPUs, and runs without one), and the same worker with the job loop of the SDK (`--only
sdk-…`).

After the loads of the table, a round has a sweep from one caller to 128, and one longer stream
whose token arrivals are stored; the worker also streams with delayed POSTs. `--others` runs other
benchmarks of this folder once, for the rows that they measure. The table is Markdown; `--read`
prints it again from the files of one or several runs, whose rounds are combined.
`builder/plots.py` draws the same files.
"""

import argparse
import os
from pathlib import Path

import aiohttp
import bench
from compare_parts import command
from compare_parts.conditions import CONDITIONS
from compare_parts.others import run_others
from compare_parts.rows import FIRST_SIDES, POST_DELAYS_MS, SWEEP, side_table
from compare_parts.sides import SIDES, parse_side

from emulator import faults_that_delay_posts
from proof.measure.comparison import Comparison, Groups, Round
from proof.measure.figures import Load
from proof.measure.sides import WorkerSide

# The loads of each side, in this order; the first one also warms up.
LOADS = {
    "warm-up": Load(callers=64, requests=128),
    # Enough requests that their p99 is not their maximum.
    "idle": Load(callers=1, requests=200),
    "16 streams": Load(callers=16, requests=160),
    "64 streams": Load(callers=64, requests=320),
    "64 whole": Load(callers=64, requests=320, stream=False),
}
# So few requests that all of these loads take less than a minute on a CPU.
LOADS |= {name: Load(callers, requests=max(8, 2 * callers)) for callers, name in SWEEP.items()}
ONE_STREAM = Load(callers=1, requests=1, tokens=200)
SLOW_LINK = Load(callers=1, requests=5, tokens=100)


async def measure(side_name: str, model: Path, conditions: str) -> Round:
    """Start a side, and measure it with all loads."""
    results: Groups = {}
    async with SIDES[side_name](model, CONDITIONS[conditions]) as side:
        for name, load in LOADS.items():
            results[name] = (await side.run(load)).figures.as_json()
        results["start"] = {"first_s": side.first_s, "memory_mib": side.memory_mib()}
        stream = await side.run(ONE_STREAM)
        if not isinstance(side, WorkerSide):
            return Round(results, stream.arrivals)
        results["link"] = await measure_link(side)
        return Round(results, stream.arrivals, side.output.phases)


async def measure_link(side: WorkerSide) -> dict[str, float]:
    """Return the time of 100 tokens with delayed POSTs, relative to the time without delay."""
    latencies_ms = {}
    for delay_ms in (0, *POST_DELAYS_MS):
        await delay_posts(side, delay_ms / 1000)
        latencies_ms[delay_ms] = (await side.run(SLOW_LINK)).figures.latency_p50
    return {
        f"{delay_ms} ms": latencies_ms[delay_ms] / latencies_ms[0] for delay_ms in POST_DELAYS_MS
    }


async def delay_posts(side: WorkerSide, delay_s: float) -> None:
    """Delay each of the worker's POSTs as on a slow link."""
    url = f"{side.control}/faults"
    async with aiohttp.ClientSession(raise_for_status=True) as client:
        await client.delete(url)
        for fault in faults_that_delay_posts(delay_s):
            await client.post(url, json=fault.model_dump(mode="json", exclude_defaults=True))


def compare(arguments: argparse.Namespace) -> Comparison:
    machine, model, conditions = bench.machine(), arguments.model, arguments.conditions
    # Otherwise variables of this shell would change the defaults of the sides.
    for name in CONDITIONS["one-thread"].environ:
        os.environ.pop(name, None)
    other_figures = [run_others(model)] if arguments.others else []
    rounds = command.measure_rounds(arguments, lambda name: measure(name, model, conditions))
    return Comparison([machine], model.name, CONDITIONS[conditions].title, rounds, other_figures)


if __name__ == "__main__":
    parser = command.options(__doc__, SIDES, FIRST_SIDES, parse_side)
    parser.add_argument("--conditions", choices=tuple(CONDITIONS), default="one-thread")
    parser.add_argument(
        "--others", action="store_true", help="also run other benchmarks for their rows"
    )
    arguments = parser.parse_args()
    if arguments.others and arguments.conditions != "one-thread":
        parser.error("--others runs benchmarks with threads of their own, so omit --conditions")
    command.run(arguments, compare, side_table)
