"""Measures batches: throughput and memory against vLLM's run_batch, kills, other callers, many.

    python benchmarks/batch.py throughput [--rounds 3] [--lines 2000]
    python benchmarks/batch.py memory [--rounds 3] [--megabytes 200]
    python benchmarks/batch.py kill [--rounds 3] [--lines 2000]
    python benchmarks/batch.py callers [--rounds 3] [--seconds 30]
    python benchmarks/batch.py many [--rounds 1] [--seconds 30]

Each side is a separate process with the same input and the same engine settings (128 concurrent
requests, 512 tokens, float32, eager, one process for the engine core), and is warmed up. The sides
alternate; the ratios count, not the seconds. The demo model's steps take almost no time; with any
real model, the ratios are nearer to 1. The exit status is 1 if a goal is missed.

throughput: lines per second, from the job's submission to its end, or of run_batch's own function
from the started engine to the written output. Neither side includes the startup. Goal: 0.95 x.

memory: the largest growth of the process for an input of lines of 100 kB, relative to its size with
the loaded engine; without the engine core. Goal: below 150 MB.

kill: SIGKILL after half the duration of a full run. It shows how many responses are on the disk,
how many must be computed again, and the seconds that the next run needs for the rest.

callers: two callers who send the next request as soon as they get a response, with 16 tokens per
chat, with and without a batch in the same engine. It shows the median, the 99th percentile and the
maximum in milliseconds. Goal: p99 below 2 x.

many: one caller with 4 tokens per request, with and without batches in the same worker: 180 batches
of 100 lines of 1,500 tokens on a queue endpoint, one of 1,000 lines that the worker has taken up
without a job, and 600 batches of one such line over HTTP. Goals: on the queue, the median is at
most 3 x and the maximum below 2 s; next to work without a job, the median is at most 1.5 x; over
HTTP, it is at most 2 x, and the worker has at most 10 more threads.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bench
from batch_parts import many, sides
from batch_parts.sides import SIDES, RunResult

from proof.measure import processes

TOKENS = 16
LONG = 100_000
THROUGHPUT, GROWTH_MB, TAIL = 0.95, 150, 2.0


class BatchBenchmark:
    """The parts of the benchmark; each run of a side has an empty folder."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.model = str(args.model)

    def make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    async def alternate_sides(self, source: Path) -> dict[str, list[RunResult]]:
        results: dict[str, list[RunResult]] = {side: [] for side in SIDES}
        for turn in range(self.args.rounds):
            for side in SIDES[:: 1 if turn % 2 == 0 else -1]:
                results[side].append(await sides.run(side, self.model, source, self.make_folder()))
        return results

    async def throughput(self) -> bool:
        lines = self.args.lines
        results = await self.alternate_sides(
            sides.write_input(self.folder / "input.jsonl", lines, TOKENS)
        )
        speeds = {side: [lines / result.seconds for result in results[side]] for side in SIDES}
        ratios = [ours / vllm for ours, vllm in zip(*speeds.values(), strict=True)]
        print(f"{lines:,} lines of {TOKENS} tokens; lines per second")
        for side in SIDES:
            print_row(side, speeds[side])
        print_row("ratio", ratios, digits=2)
        return print_goal("throughput", statistics.median(ratios) >= THROUGHPUT, f">= {THROUGHPUT}")

    async def memory(self) -> bool:
        count = self.args.megabytes * 1_000_000 // LONG
        source = sides.write_input(self.folder / "input.jsonl", count, 1, LONG)
        results = await self.alternate_sides(source)
        print(f"{count:,} lines of {LONG:,} bytes; MB of growth")
        for side in SIDES:
            print_row(side, [result.growth_mb for result in results[side]])
        ours = statistics.median(result.growth_mb for result in results[SIDES[0]])
        return print_goal("memory", ours < GROWTH_MB, f"< {GROWTH_MB} MB")

    async def kill(self) -> bool:
        lines = self.args.lines
        source = sides.write_input(self.folder / "input.jsonl", lines, TOKENS)
        print(f"{lines:,} lines, killed after half the time of a whole run")
        print(f"{'':12}{'whole s':>9}{'stored':>8}{'to do':>8}{'rest s':>9}")
        is_complete = True
        for _ in range(self.args.rounds):
            for side in SIDES:
                full_s = (await sides.run(side, self.model, source, self.make_folder())).seconds
                folder = self.make_folder()
                async with sides.start_side(side, self.model, source, folder) as process:
                    await asyncio.sleep(full_s / 2)
                    if process.returncode is not None:
                        raise processes.Lost(f"{side} ended before it was killed: use more --lines")
                    process.kill()
                answered = sides.answers(folder)
                rest_s = (await sides.run(side, self.model, source, folder)).seconds
                print(
                    f"{side:12}{full_s:9.1f}{answered:8,}{lines - answered:8,}{rest_s:9.1f}",
                    flush=True,
                )
                is_complete &= sides.answers(folder) == lines
        return print_goal("kill", is_complete, "all lines answered by the next run")

    async def callers(self) -> bool:
        source = sides.write_input(self.folder / "input.jsonl", self.args.lines, 64)
        program = Path(sides.__file__).parent / "callers.py"
        numbers = (str(self.args.seconds), str(self.args.rounds))
        arguments = (self.model, str(source), str(self.make_folder()), *numbers)
        rounds: dict[str, list[Sequence[float]]] = {"alone": [], "beside": []}
        command = (sys.executable, "-u", str(program), *arguments)
        async with processes.run_process(command, sides.ENVIRON, quiet=True) as process:
            for _ in range(2 * self.args.rounds):
                _, side, *words = await processes.next_line(process, "round")
                rounds[side].append([float(word) for word in words])
        print(f"{self.args.seconds} s of two callers; chats, and ms: median, p99, maximum")
        for side, results in rounds.items():
            for column, name in enumerate(("chats", "p50", "p99", "max")):
                print_row(f"{side} {name}", [figures[column] for figures in results])
        tails = [
            statistics.median(figures[2] for figures in results) for results in rounds.values()
        ]
        print(f"p99 next to a batch: {tails[1] / tails[0]:.2f} x")
        return print_goal("callers", tails[1] < TAIL * tails[0], f"p99 < {TAIL} x")

    async def many(self) -> bool:
        seconds, is_met = self.args.seconds, True
        print(f"{seconds:g} s of one caller: without other work, and next to many batches")
        for _ in range(self.args.rounds):
            folder = self.make_folder()
            alone, busy = await many.measure_queue(self.model, folder, 180, 100, seconds)
            print(f"queue: {alone}; {busy}: {busy.p50 / alone.p50:.1f} x", flush=True)
            is_met &= busy.p50 <= 3 * alone.p50 and busy.maximum < 2_000
            folder = self.make_folder()
            alone, busy = await many.measure_queue(
                self.model, folder, 1, 1_000, seconds, has_key=False
            )
            print(f"orphan: {alone}; {busy}: {busy.p50 / alone.p50:.1f} x", flush=True)
            is_met &= busy.p50 <= 1.5 * alone.p50
            alone, busy = await many.measure_server(self.model, self.make_folder(), 600, seconds)
            print(f"HTTP: {alone}; {busy}: {busy.p50 / alone.p50:.1f} x", flush=True)
            is_met &= busy.p50 <= 2 * alone.p50 and busy.threads <= alone.threads + 10
        return print_goal(
            "many", is_met, "p50 <= 3 x, 1.5 x, 2 x, maximum < 2 s, threads <= 10 more"
        )


def print_row(title: str, values: Sequence[float], digits: int = 1) -> None:
    figures = (statistics.median(values), min(values), max(values))
    print(f"{title:14}" + "".join(f"{figure:12,.{digits}f}" for figure in figures), flush=True)


def print_goal(name: str, is_met: bool, condition: str) -> bool:
    print(f"{name}: goal {condition}: {'met' if is_met else 'MISSED'}")
    return is_met


async def main(args: argparse.Namespace) -> bool:
    print(f"{bench.machine()}; median, minimum and maximum of {args.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="batch-") as folder:
        is_met: bool = await getattr(BatchBenchmark(args, Path(folder)), args.what)()
    return is_met


if __name__ == "__main__":
    parser = bench.options(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("throughput", "memory", "kill", "callers", "many"))
    parser.add_argument("--lines", type=int, default=None)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    arguments = parser.parse_args()
    arguments.lines = arguments.lines or (50_000 if arguments.what == "callers" else 2_000)
    sys.exit(0 if asyncio.run(main(arguments)) else 1)
