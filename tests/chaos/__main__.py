"""Runs the scenarios: faults, sigterm, cancel, freeze, deaths, kills, batches, fine-tunes.

    python -m chaos [faults sigterm cancel freeze deaths kills batches fine-tunes] [--seed 7] ...

Each prints what was broken and which goals were missed, and a line with its figures. The status is
1 if anything was broken or missed. The same seed gives the same jobs and the same random moments,
but not the same timing.
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
from chaos.long_work import batches, fine_tunes
from chaos.report import Report, machine, print_line
from chaos.watch import WorkerExited

SCENARIOS: dict[str, Callable[[Namespace], Coroutine[Any, Any, Report]]] = {
    "faults": faults.run,
    "sigterm": sigterm.run,
    "cancel": cancel.run,
    "freeze": freeze.run,
    "deaths": deaths.run,
    "kills": kills.run,
    "batches": batches.run,
    "fine-tunes": fine_tunes.run,
}


def read_command_line() -> Namespace:
    parser = argparse.ArgumentParser(
        prog="chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="scenario", help=f"{', '.join(SCENARIOS)}; default: all")
    add("--seed", type=int, default=7)
    add("--jobs", type=int, default=5000, help="of faults: one half streamed twins of the other")
    add("--outage", type=float, default=120, help="of faults: seconds")
    add("--signals", type=int, default=100, help="of sigterm: workers that are ended")
    add("--cancels", type=int, default=500, help="of cancel: jobs that are cancelled")
    add("--freezes", type=int, default=30, help="of freeze: freezes of an idle worker")
    add("--stream-freezes", type=int, default=10, help="of freeze: freezes in mid-stream")
    add("--seconds", type=float, default=9, help="of freeze: how long each lasts; more than 5")
    add("--deaths", type=int, default=50, help="of deaths: cores that are ended")
    add("--main-kills", type=int, default=50, help="of kills: workers that are killed")
    add("--kills", type=int, default=20, help="of batches: workers that are killed")
    add("--real-kills", type=int, default=5, help="of batches: likewise, with the real engine")
    add("--limit", type=float, default=60, help="minutes after which a scenario is given up")
    add("--logs", type=Path, default=ROOT / ".chaos", help="a folder for the workers' logs")
    args = parser.parse_args()
    if unknown := set(args.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(unknown)}")
    return args


async def main(args: Namespace) -> bool:
    """Run the scenarios one after the other; return whether all were good."""
    # As Ctrl-C: workers are ended on the way out.
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    args.logs.mkdir(parents=True, exist_ok=True)
    print_line(machine())
    reports = [await run(name, args) for name in args.scenarios or SCENARIOS]
    return all(report.good for report in reports)


async def run(name: str, args: Namespace) -> Report:
    """Run a scenario, and print its report."""
    try:
        async with asyncio.timeout(60 * args.limit):
            report = await SCENARIOS[name](args)
    except TimeoutError:
        report = Report(name, broken=[f"not ended after {args.limit:g} minutes"])
    except WorkerExited as exited:
        report = Report(name, broken=[f"the worker exited: {exited}"])
    report.print()
    return report


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main(read_command_line())) else 1)
