"""Rows of the table that other benchmarks measure."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench

from proof.measure import processes
from proof.measure.comparison import Groups

median = statistics.median


def _loop(results: Any) -> Groups:
    """Return jobs per second, and the ratio of the last thousand jobs to the first thousand."""
    nothing = {"jobs_per_s": median(results["nothing"]["jobs_per_s"])}
    return {"nothing": nothing, "flat": results["flat"]["ratios"]}


def _streaming(results: Any) -> Groups:
    """Return the duration of each stream relative to its engine, by POST delay and engine pace."""
    return {
        "paced": {
            f"{1000 * case['post_delay_s']:.0f} {1000 * case['pace_s']:.0f}": median(
                round_["stream_s"] / round_["engine_s"] for round_ in case["rounds"]
            )
            for case in results
        }
    }


def _cold_start(results: Any) -> Groups:
    return {"compiled": {name: median(seconds) for name, seconds in results["compiled"].items()}}


def _offline(results: Any) -> Groups:
    speeds = {name: median(values) for name, values in results["prefix"].items()}
    return {"prefix": {**speeds, "gain": speeds["shared"] / speeds["distinct"]}}


@dataclass(frozen=True)
class OtherBenchmark:
    """Another benchmark.

    Args:
        command: Its file and its options.
        figures: Function that extracts the figures of the table from the output of `--json`.
        has_model: Whether its model can be chosen.
    """

    command: str
    figures: Callable[[Any], Groups]
    has_model: bool = True

    def run(self, model: Path) -> Groups:
        """Run the benchmark and show its output.

        Raises:
            processes.Lost: If it writes no figures.
        """
        file, *options = self.command.split()
        with tempfile.TemporaryDirectory() as folder:
            figures_file = Path(folder, "figures.json")
            benchmark = str(bench.ROOT / "benchmarks" / file)
            command = [sys.executable, benchmark, *options, "--json", str(figures_file)]
            command += ["--model", str(model)] if self.has_model else []
            # Its exit status is about its own goals, which the table repeats.
            subprocess.run(command, stdout=sys.stderr, check=False)
            if not figures_file.is_file():
                raise processes.Lost(f"{file} wrote no figures")
            return self.figures(json.loads(figures_file.read_text()))


OTHER_BENCHMARKS = (
    OtherBenchmark("loop.py --only nothing,flat --jobs 20000", _loop),
    OtherBenchmark("streaming.py", _streaming, has_model=False),
    OtherBenchmark("cold_start.py --only compiled --rounds 1", _cold_start),
    OtherBenchmark("offline.py --only prefix", _offline),
)


def run_others(model: Path) -> Groups:
    """Run all other benchmarks and return their figures."""
    return {
        name: group
        for benchmark in OTHER_BENCHMARKS
        for name, group in benchmark.run(model).items()
    }
