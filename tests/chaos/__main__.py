"""Runs the scenarios: faults, sigterm, cancel, freeze, deaths, kills, batches, fine-tunes, losses.

    python -m chaos [faults sigterm cancel freeze deaths kills batches fine-tunes losses] [--seed 7]

Each scenario prints the violations it found, the goals it missed, and a line with its figures. The
exit status is 1 if there was any violation or missed goal. The same seed gives the same jobs and
the same random moments, but not the same timing.
"""

import argparse
import asyncio
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from support import ROOT

from chaos import cancel, deaths, faults, freeze, kills, sigterm
from chaos.long_work import batches, fine_tunes, losses
from chaos.report import Report, describe_machine, print_line
from chaos.workload import WorkerExited

SCENARIOS: dict[str, Callable[[Namespace], Coroutine[Any, Any, Report]]] = {
    "faults": faults.run,
    "sigterm": sigterm.run,
    "cancel": cancel.run,
    "freeze": freeze.run,
    "deaths": deaths.run,
    "kills": kills.run,
    "batches": batches.run,
    "fine-tunes": fine_tunes.run,
    "losses": losses.run,
}


def read_command_line() -> Namespace:
    parser = argparse.ArgumentParser(
        prog="chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="scenario", help=f"{', '.join(SCENARIOS)}; default: all")
    add("--seed", type=int, default=7)
    add(
        "--jobs",
        type=int,
        default=5000,
        help="faults: number of jobs; half of them repeat the other half as streams",
    )
    add("--outage", type=float, default=120, help="faults: length of the outage in seconds")
    add("--signals", type=int, default=100, help="sigterm: number of workers to stop")
    add("--cancels", type=int, default=500, help="cancel: number of jobs to cancel")
    add("--freezes", type=int, default=30, help="freeze: number of freezes of an idle worker")
    add("--stream-freezes", type=int, default=10, help="freeze: number of freezes during a stream")
    add("--seconds", type=float, default=9, help="freeze: length of each freeze; more than 5")
    add("--deaths", type=int, default=50, help="deaths: number of engine cores to end")
    add("--main-kills", type=int, default=50, help="kills: number of workers to kill")
    add("--kills", type=int, default=20, help="batches: number of workers to kill")
    add(
        "--real-kills",
        type=int,
        default=5,
        help="batches: number of workers with the real engine to kill",
    )
    add("--docs", action="store_true", help="losses: write the table in docs/long-work.md")
    add("--limit", type=float, default=60, help="time limit of a scenario in minutes")
    add("--logs", type=Path, default=ROOT / ".chaos", help="folder for the workers' logs")
    args = parser.parse_args()
    if unknown := set(args.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(unknown)}")
    return args


async def main(args: Namespace) -> bool:
    """Run the scenarios sequentially; return whether all of them succeeded."""
    # Handle SIGTERM like Ctrl-C, so that the workers are stopped on exit.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    args.logs.mkdir(parents=True, exist_ok=True)
    print_line(describe_machine())
    reports = [await run(name, args) for name in args.scenarios or SCENARIOS]
    return all(report.is_good for report in reports)


async def run(name: str, args: Namespace) -> Report:
    """Run a scenario and print its report."""
    try:
        async with asyncio.timeout(60 * args.limit) as limit:
            report = await SCENARIOS[name](args)
    except TimeoutError:
        late = f"not finished after {args.limit:g} minutes" if limit.expired() else "a step hung"
        report = Report(name, broken=[late])
    except WorkerExited as error:
        report = Report(name, broken=[f"the worker exited: {error}"])
    report.print()
    return report


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main(read_command_line())) else 1)
