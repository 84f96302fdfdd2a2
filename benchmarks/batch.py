"""Measures batches: throughput and memory against vLLM's run_batch, what a kill costs, and callers.

    python benchmarks/batch.py throughput [--rounds 3] [--lines 2000]
    python benchmarks/batch.py memory [--rounds 3] [--megabytes 200]
    python benchmarks/batch.py kill [--rounds 3] [--lines 2000]
    python benchmarks/batch.py callers [--rounds 3] [--seconds 30]

Each side is a process of its own, on the same input, with the same engine settings (128 requests
at once, 512 tokens, float32, eager, one process for the engine's core), and warm. The sides
alternate; the ratios count, not the seconds. The demo model's steps take almost no time: with any
real model the ratios are nearer to 1. Exits with 1 if a goal is missed.

throughput: lines per second, from the job to its end, or of run_batch's own function from the
started engine to the written output. The start counts on neither side. Goal: 0.95 x.

memory: how much the process grows, at most, for an input of lines of 100 kB, over what it has when
the engine is there; without the engine's core. Goal: below 150 MB.

kill: SIGKILL after half the seconds of a whole run. How many answers are on the disk, how many have
to be computed again, and the seconds that the next run needs for the rest.

callers: two who ask again as soon as they are answered, 16 tokens a chat: with and without a batch
in the same engine. Milliseconds of half, of 99 in 100, and of the slowest. Goal: p99 below 2 x.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bench
from batch_parts import sides
from batch_parts.sides import SIDES, Ran

TOKENS = 16
LONG = 100_000
THROUGHPUT, GROWTH_MB, TAIL = 0.95, 150, 2.0


class Measuring:
    """Runs sides by turns, each in an empty folder."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.model = str(args.model)

    def empty(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    async def by_turns(self, source: Path) -> dict[str, list[Ran]]:
        found: dict[str, list[Ran]] = {side: [] for side in SIDES}
        for turn in range(self.args.rounds):
            for side in SIDES[:: 1 if turn % 2 == 0 else -1]:
                found[side].append(await sides.run(side, self.model, source, self.empty()))
        return found

    async def throughput(self) -> bool:
        lines = self.args.lines
        found = await self.by_turns(sides.write_input(self.folder / "input.jsonl", lines, TOKENS))
        speeds = {side: [lines / ran.seconds for ran in found[side]] for side in SIDES}
        ratios = [ours / theirs for ours, theirs in zip(*speeds.values(), strict=True)]
        print(f"{lines:,} lines of {TOKENS} tokens; lines per second")
        for side in SIDES:
            row(side, speeds[side])
        row("ratio", ratios, digits=2)
        return goal("throughput", statistics.median(ratios) >= THROUGHPUT, f">= {THROUGHPUT}")

    async def memory(self) -> bool:
        count = self.args.megabytes * 1_000_000 // LONG
        source = sides.write_input(self.folder / "input.jsonl", count, 1, LONG)
        found = await self.by_turns(source)
        print(f"{count:,} lines of {LONG:,} bytes; MB of growth")
        for side in SIDES:
            row(side, [ran.growth_mb for ran in found[side]])
        ours = statistics.median(ran.growth_mb for ran in found[SIDES[0]])
        return goal("memory", ours < GROWTH_MB, f"< {GROWTH_MB} MB")

    async def kill(self) -> bool:
        lines = self.args.lines
        source = sides.write_input(self.folder / "input.jsonl", lines, TOKENS)
        print(f"{lines:,} lines, killed after half the time of a whole run")
        print(f"{'':12}{'whole s':>9}{'kept':>8}{'to do':>8}{'rest s':>9}")
        whole_in_the_end = True
        for _ in range(self.args.rounds):
            for side in SIDES:
                whole = (await sides.run(side, self.model, source, self.empty())).seconds
                folder = self.empty()
                async with sides.started(side, self.model, source, folder) as process:
                    await asyncio.sleep(whole / 2)
                    if process.returncode is not None:
                        raise bench.Lost(f"{side} ended before it was killed: more --lines")
                    process.kill()
                kept = sides.answers(folder)
                rest = (await sides.run(side, self.model, source, folder)).seconds
                print(f"{side:12}{whole:9.1f}{kept:8,}{lines - kept:8,}{rest:9.1f}", flush=True)
                whole_in_the_end &= sides.answers(folder) == lines
        return goal("kill", whole_in_the_end, "all lines answered by the next run")

    async def callers(self) -> bool:
        source = sides.write_input(self.folder / "input.jsonl", self.args.lines, 64)
        program = Path(sides.__file__).parent / "callers.py"
        numbers = (str(self.args.seconds), str(self.args.rounds))
        arguments = (self.model, str(source), str(self.empty()), *numbers)
        rounds: dict[str, list[Sequence[float]]] = {"alone": [], "beside": []}
        command = (sys.executable, "-u", str(program), *arguments)
        async with bench.running(command, sides.ENVIRON, quiet=True) as process:
            for _ in range(2 * self.args.rounds):
                _, side, *words = await bench.next_line(process, "round")
                rounds[side].append([float(word) for word in words])
        print(f"{self.args.seconds} s of two callers; chats, and ms: half, 99 in 100, the slowest")
        for side, found in rounds.items():
            for column, name in enumerate(("chats", "p50", "p99", "max")):
                row(f"{side} {name}", [figures[column] for figures in found])
        tails = [statistics.median(figures[2] for figures in found) for found in rounds.values()]
        print(f"p99 beside a batch: {tails[1] / tails[0]:.2f} x")
        return goal("callers", tails[1] < TAIL * tails[0], f"p99 < {TAIL} x")


def row(title: str, values: Sequence[float], digits: int = 1) -> None:
    figures = (statistics.median(values), min(values), max(values))
    print(f"{title:14}" + "".join(f"{figure:12,.{digits}f}" for figure in figures), flush=True)


def goal(name: str, met: bool, words: str) -> bool:
    print(f"{name}: goal {words}: {'met' if met else 'MISSED'}")
    return met


async def main(args: argparse.Namespace) -> bool:
    print(f"{bench.machine()}; medians, least and most of {args.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="batch-") as folder:
        found: bool = await getattr(Measuring(args, Path(folder)), args.what)()
    return found


if __name__ == "__main__":
    parser = bench.options(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("throughput", "memory", "kill", "callers"))
    parser.add_argument("--lines", type=int, default=None)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    arguments = parser.parse_args()
    arguments.lines = arguments.lines or (50_000 if arguments.what == "callers" else 2_000)
    sys.exit(0 if asyncio.run(main(arguments)) else 1)
