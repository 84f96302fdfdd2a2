"""Sends hostile requests, and starts workers with drawn settings (``make fuzz``).

    python -m fuzz [attacks jobs routes starts] [--jobs 20000] [--cases 20000] ...

attacks: a table of requests that did harm once, or might. jobs: raw jobs that hypothesis
generates. routes: requests that schemathesis generates from the server's OpenAPI description.
starts: settings of which the doctor must say what a start does. The status is 1 if any of them did
harm.
"""

import argparse
import signal
import sys
from argparse import Namespace
from pathlib import Path

from support import ROOT
from support.tables.attacks import KINDS

from fuzz import attacks, jobs, routes, starts

PARTS = {"attacks": attacks.run, "jobs": jobs.run, "routes": routes.run, "starts": starts.run}


def read_command_line() -> Namespace:
    parser = argparse.ArgumentParser(
        prog="fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default: all")
    only = f"of attacks: a kind ({', '.join(KINDS)}) or a text in a row's name; of routes: a path"
    add("--only", action="append", default=[], metavar="TEXT", help=only)
    add("--harmful", action="store_true", help="of attacks: only rows that did harm once")
    add("--jobs", type=int, default=2_000, help="of jobs: how many")
    add("--seed", type=int, default=7, help="of jobs and starts")
    add("--cases", type=int, default=2_000, help="of routes: about how many")
    add("--coverage", action="store_true", help="of routes: 15,000 more, fields at their bounds")
    add("--starts", type=int, default=20, help="of starts: how many")
    add("--checkout", type=Path, default=ROOT, metavar="DIR", help="another one; not of starts")
    add("--logs", type=Path, default=ROOT / ".fuzz", metavar="DIR", help="for results and logs")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")
    args.checkout, args.logs = args.checkout.resolve(), args.logs.resolve()
    return args


def main(args: Namespace) -> int:
    # As Ctrl-C: workers are ended on the way out.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    args.logs.mkdir(parents=True, exist_ok=True)
    wrong = sum(PARTS[name](args) for name in args.parts or PARTS)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(read_command_line()))
