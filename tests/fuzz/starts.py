"""Draws settings, and compares what the doctor says of them with what a start does.

One or two settings a case, with values that operators set, on the demo model. The doctor and a
start may disagree about whether it comes up, or about which of the settings is wrong.
"""

import random
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml
from support.effort import side_by_side
from support.processes import commands
from support.processes.commands import SCRIPT, WORKER

from fuzz.attacks import print_line

# A job that every engine answers, whatever it can do.
MODELS = '{"input": {"route": "/v1/models"}}'
# Without those that are read when vLLM is imported, which happens once for all cases.
VALUES: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())

Case = dict[str, str]


def draw(cases: int, seed: int) -> Iterator[Case]:
    """Yield cases, none of them twice."""
    chosen = random.Random(seed)
    seen = set[tuple[tuple[str, str], ...]]()
    while len(seen) < cases:
        names = sorted(chosen.sample([*VALUES], chosen.choice((1, 2))))
        case = {name: chosen.choice(VALUES[name]) for name in names}
        if (key := tuple(case.items())) not in seen:
            seen.add(key)
            yield case


def disagreement(case: Case) -> str:
    """Start a worker, and ask the doctor; return how they differ, empty if they don't."""
    started = commands.run({**WORKER, **case}, SCRIPT, "--test_input", MODELS)
    checked = commands.run({**WORKER, **case}, SCRIPT, "--check")
    if "Traceback" in checked.stderr:
        return f"the doctor: {checked.stderr[-1_000:]}"
    end = (started.stderr.splitlines() or [""])[-1]
    failures = " ".join(checked.stdout.split())
    if (started.returncode == 0) is not (checked.returncode == 0):
        return f"start: {started.returncode} {end[:400]}; doctor: {failures[-600:]}"
    blamed = {name for name in case if name in end}
    if started.returncode and blamed and not any(name in failures for name in blamed):
        return f"the start names {', '.join(blamed)}: {end[:400]}; doctor: {failures[-600:]}"
    return ""


def run(args: Namespace) -> int:
    """Try as many cases as were asked for; return with how many the doctor disagrees."""
    cases = {str(case): case for case in draw(args.starts, args.seed)}
    wrong = 0
    with side_by_side({name: partial(disagreement, case) for name, case in cases.items()}) as ended:
        for name in cases:
            if differs := ended(name):
                wrong += 1
                print_line(f"{name}\n    {differs}")
    print_line(f"\nstarts: {len(cases)}, the doctor disagrees with {wrong}")
    return wrong
