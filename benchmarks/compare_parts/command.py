"""The command line of comparisons: its options, the rounds of all sides, and the table."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import bench

from proof.measure import comparison as comparisons
from proof.measure.comparison import Comparison, Groups, Round


def options(
    description: str | None,
    sides: Iterable[str],
    first_sides: Sequence[str],
    parse_side: Callable[[str], str] = str,
) -> argparse.ArgumentParser:
    """Return a parser with the options of all comparisons; by default ``first_sides`` run."""
    parser = bench.options(description, writes_json=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument(
        "--only", nargs="+", type=parse_side, choices=tuple(sides), default=list(first_sides)
    )
    parser.add_argument(
        "--read",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print the table of files instead of measuring",
    )
    return parser


def measure_rounds(
    arguments: argparse.Namespace, measure: Callable[[str], Awaitable[Round]]
) -> dict[str, list[Round]]:
    """Measure all sides in each round, in alternating order."""

    async def measure_all() -> dict[str, list[Round]]:
        results: dict[str, list[Round]] = {name: [] for name in arguments.only}
        for number in range(arguments.rounds):
            for name in sorted(arguments.only, reverse=number % 2 == 0):
                results[name].append(await measure(name))
                print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
        return results

    return asyncio.run(measure_all())


def run(
    arguments: argparse.Namespace,
    compare: Callable[[argparse.Namespace], Comparison],
    table: Callable[[Mapping[str, Groups]], str],
) -> None:
    """Compare the sides, or read the files of comparisons, and print the table of their medians."""
    if arguments.read:
        comparison = comparisons.read(arguments.read)
    else:
        comparison = compare(arguments)
        bench.write_json(arguments.json, comparisons.FILE_FORMAT.dump_python(comparison))
    print(table(comparison.sides()))
    rounds = max(map(len, comparison.rounds.values()))
    run = [f"model {comparison.model}", comparison.conditions, *comparison.machine]
    print(f"\nMedians of {rounds}; {'; '.join(run)}")
