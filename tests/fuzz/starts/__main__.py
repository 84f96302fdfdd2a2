"""Tries cases in forks of this process, which imports vLLM once (``python -m fuzz.starts``)."""

import argparse
import gc
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz import print_line
from fuzz.starts.draft import MODEL
from worker.children.with_parent import exit_with_parent
from worker.settings.environment import LIBRARY_DEFAULTS

if TYPE_CHECKING:
    # They import vLLM, which reads environment variables that are set first.
    from fuzz.starts.cases import Result, Run

# Modules that only a core imports. All others are known after the first trial.
CORE_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn")


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz.starts", description=__doc__)
    parser.add_argument("--starts", type=int, default=40, help="number of cases")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", type=int, action="append", default=[], help="a case's number")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        (Path(folder) / "bases").mkdir()
        (Path(folder) / "home").mkdir()
        return try_cases(args.seed, args.only or range(args.starts), Path(folder))


def try_cases(seed: int, numbers: Sequence[int], folder: Path) -> int:
    """Try the cases, two at a time, and print their faults; return 1 if there is any."""
    started_at = time.monotonic()
    # Libraries read these variables on import; the other variables of a case are set in its forks.
    os.environ.update(LIBRARY_DEFAULTS, HF_HOME=str(folder / "home"), HF_HUB_OFFLINE="1")
    for name in CORE_MODULES:
        importlib.import_module(name)
    from fuzz.starts.cases import Run  # noqa: PLC0415 - it imports vLLM

    run = Run(seed, folder)
    import_like_first_trial(run)
    # Garbage collection in the forks must not copy the memory of the imported modules.
    gc.collect()
    gc.freeze()
    initialize = partial(prepare_process, os.getpid())
    context = multiprocessing.get_context("fork")
    report = Report(folder, started_at)
    with ProcessPoolExecutor(2, context, initializer=initialize) as pool:
        for result in pool.map(run.try_case, numbers):
            report.add(result)
    return report.print_summary()


def import_like_first_trial(run: "Run") -> None:
    """Start a worker in a fork, and import all modules that it imports."""
    from support.processes.commands import DEMO  # noqa: PLC0415 - the same

    from fuzz.starts import trials  # noqa: PLC0415 - it imports vLLM

    prepare_process(os.getppid())
    environ = {**run.environ, MODEL: str(DEMO), "TMPDIR": str(run.folder)}
    for verdict in (trials.run_doctor(environ, run.folder), trials.run_start(environ, run.folder)):
        assert verdict.works, verdict.message
    for name in ("doctor", "start"):
        for module in (run.folder / f"{name}.modules").read_text().splitlines():
            # A module that is loaded from a file of the model can't be imported by its name.
            with suppress(ImportError):
                importlib.import_module(module)


def prepare_process(parent: int) -> None:
    """Let this process exit with its parent, and inherit the children of its descendants."""
    import torch  # noqa: PLC0415 - it reads environment variables

    from fuzz.starts import trials  # noqa: PLC0415 - it imports vLLM

    # Forks of this process would wait for its other threads, which they lack.
    torch.set_num_threads(1)
    exit_with_parent(parent)
    trials.become_subreaper()


@dataclass
class Report:
    """The results so far, of cases in a temporary folder."""

    folder: Path
    started_at: float
    kinds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    by_commands: int = 0

    def add(self, result: "Result") -> None:
        """Count a result, and print its faults, without the paths of temporary folders."""
        self.kinds[result.case.kind] += 1
        self.verdicts["doctor: would start" if result.doctor.works else "doctor: refused"] += 1
        self.verdicts["started" if result.start.works else "failed to start"] += 1
        self.by_commands += result.by_commands
        for name, text in result.faults.items():
            self.faults[name] += 1
            case = result.case
            settings = " ".join(f"{key}={value}" for key, value in case.settings.items())
            notes = f" ({'; '.join(case.notes)})" if case.notes else ""
            printed = f"{result.number}: {case.kind}{notes} {settings}\n    {name}\n    {text}"
            print_line(printed.replace(f"{self.folder}/case-{result.number}/", "…/"))

    def print_summary(self) -> int:
        """Print the counts; return 1 if there is any fault."""
        from fuzz.starts.cases import FAULTS  # noqa: PLC0415 - it imports vLLM

        minutes = (time.monotonic() - self.started_at) / 60
        cases = self.kinds.total()
        print_line(
            f"\nstarts: {cases} cases in {minutes:.1f} minutes, {self.by_commands} by commands"
        )
        print_line(", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common()))
        print_line(", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items())))
        for name in FAULTS:
            print_line(f"{self.faults[name]:>4} {name}")
        return int(self.faults.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
