"""Starts workers with random settings, and compares the outcome with the doctor's verdict.

Each case has one or two settings, with values that operators set, on the demo model. The doctor and
the startup may disagree about whether the worker starts, or about which setting is wrong.
"""

import random
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml
from support.effort import run_concurrently
from support.processes import commands
from support.processes.commands import SCRIPT, WORKER

from fuzz.attacks import print_line

# A job that every engine answers, whatever its tasks are.
MODELS = '{"input": {"route": "/v1/models"}}'
# Settings that vLLM reads at import are missing, because one import serves all cases.
VALUES: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())

Case = dict[str, str]


def draw_cases(cases: int, seed: int) -> Iterator[Case]:
    """Yield distinct cases."""
    rng = random.Random(seed)
    seen = set[tuple[tuple[str, str], ...]]()
    while len(seen) < cases:
        names = sorted(rng.sample([*VALUES], rng.choice((1, 2))))
        case = {name: rng.choice(VALUES[name]) for name in names}
        if (key := tuple(case.items())) not in seen:
            seen.add(key)
            yield case


def find_disagreement(case: Case) -> str:
    """Start a worker and run the doctor; describe how they differ, or return an empty string."""
    startup = commands.run_command({**WORKER, **case}, SCRIPT, "--test_input", MODELS)
    doctor = commands.run_command({**WORKER, **case}, SCRIPT, "--check")
    if "Traceback" in doctor.stderr:
        return f"the doctor: {doctor.stderr[-1_000:]}"
    last_line = (startup.stderr.splitlines() or [""])[-1]
    failures = " ".join(doctor.stdout.split())
    if (startup.returncode == 0) is not (doctor.returncode == 0):
        return f"start: {startup.returncode} {last_line[:400]}; doctor: {failures[-600:]}"
    named = {name for name in case if name in last_line}
    if startup.returncode and named and not any(name in failures for name in named):
        return f"the start names {', '.join(named)}: {last_line[:400]}; doctor: {failures[-600:]}"
    return ""


def run(args: Namespace) -> int:
    """Try the requested number of cases; return with how many of them the doctor disagrees."""
    cases = {str(case): case for case in draw_cases(args.starts, args.seed)}
    wrong = 0
    with run_concurrently(
        {name: partial(find_disagreement, case) for name, case in cases.items()}
    ) as result_of:
        for name in cases:
            if disagreement := result_of(name):
                wrong += 1
                print_line(f"{name}\n    {disagreement}")
    print_line(f"\nstarts: {len(cases)}, the doctor disagrees with {wrong}")
    return wrong
