"""The rows that other benchmarks measure: they are run, and their figures taken."""

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

from compare_parts.kept import Groups

median = statistics.median


def _loop(found: Any) -> Groups:
    """Return jobs per second, and the last thousand jobs beside the first thousand."""
    nothing = {"jobs_per_s": median(found["nothing"]["jobs_per_s"])}
    return {"nothing": nothing, "flat": found["flat"]["ratios"]}


def _streaming(found: Any) -> Groups:
    """Return each stream's time beside its engine's, by the POSTs' delay and the engine's pace."""
    return {
        "paced": {
            f"{1000 * case['post_delay_s']:.0f} {1000 * case['pace_s']:.0f}": median(
                one["stream_s"] / one["engine_s"] for one in case["rounds"]
            )
            for case in found
        }
    }


def _cold_start(found: Any) -> Groups:
    return {"compiled": {name: median(seconds) for name, seconds in found["compiled"].items()}}


def _offline(found: Any) -> Groups:
    speeds = {name: median(values) for name, values in found["prefix"].items()}
    return {"prefix": {**speeds, "gain": speeds["shared"] / speeds["distinct"]}}


@dataclass(frozen=True)
class Script:
    """Another benchmark.

    Args:
        command: its file, and its options.
        figures: takes what belongs into the table from what it writes with `--json`.
        has_model: whether its model can be chosen.
    """

    command: str
    figures: Callable[[Any], Groups]
    has_model: bool = True

    def run(self, model: Path) -> Groups:
        """Run it, and show what it prints.

        Raises:
            bench.Lost: it wrote no figures.
        """
        file, *options = self.command.split()
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder, "figures.json")
            script = str(bench.ROOT / "benchmarks" / file)
            command = [sys.executable, script, *options, "--json", str(kept)]
            command += ["--model", str(model)] if self.has_model else []
            # Its exit status says whether goals of its own are met, which the table repeats.
            subprocess.run(command, stdout=sys.stderr, check=False)
            if not kept.is_file():
                raise bench.Lost(f"{file} wrote no figures")
            return self.figures(json.loads(kept.read_text()))


SCRIPTS = (
    Script("loop.py --only nothing,flat --jobs 20000", _loop),
    Script("streaming.py", _streaming, has_model=False),
    Script("cold_start.py --only compiled --rounds 1", _cold_start),
    Script("offline.py --only prefix", _offline),
)


def run_others(model: Path) -> Groups:
    """Run all of them, and return their figures."""
    return {name: group for script in SCRIPTS for name, group in script.run(model).items()}
