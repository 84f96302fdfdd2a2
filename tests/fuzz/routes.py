"""Runs schemathesis with the OpenAPI description of ``--serve``, next to a well-behaved caller.

It fails if a response has a 5xx status (schemathesis lists each kind with a command that repeats
it), if the other caller had to wait, or if the server does not answer afterwards.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support import ROOT
from support.models.minilm import MODEL as EMBEDDER

from fuzz import print_line
from fuzz.neighbour import Call, longest_s, start_neighbour
from fuzz.target import Server

TOOL = ROOT / ".nox" / "fuzz" / "bin" / "schemathesis"
SETTINGS = {
    # With a short context, no answer takes long.
    "MAX_MODEL_LEN": "1024",
    "SERVED_MODEL_NAME": "demo",
    "EMBEDDING_MODEL_NAME": str(EMBEDDER),
    "EMBEDDING_SERVED_MODEL_NAME": "minilm",
}
# Seconds that the neighbour may wait longer than alone; timeout of the run, plus seconds for each
# case.
MAX_EXTRA_WAIT_S = 2.0
LIMIT_S = 20 * 60
CASE_S = 0.5


def run(args: Namespace) -> int:
    """Send approximately the requested number of requests; return the number of violations."""
    # Unfinished batches of an earlier run would count towards the limit.
    volume = args.logs / "volume"
    shutil.rmtree(volume, ignore_errors=True)
    settings = SETTINGS | {"FILES_PATH": str(volume)}
    target = Server(args.checkout, args.logs / "routes", settings)
    with ExitStack() as stack:
        stack.enter_context(target.start())
        neighbour = stack.enter_context(start_neighbour(target))
        pids, started_at = target.pids, time.monotonic()
        status, counts = fuzz(target.url, args)
        calls = neighbour.calls_since(started_at)
        violations = {
            "a request was answered with a 5xx": status != 0 and bool(counts),
            "no request was sent": not counts,
            "a process exited": target.has_lost(pids),
            "a request of the neighbour failed": not all(call.good for call in calls),
            "the neighbour waited": longest_s(calls) > neighbour.alone_s + MAX_EXTRA_WAIT_S,
        }
    print_report(counts, calls)
    names = [violation for violation, is_violated in violations.items() if is_violated]
    print_line(f"routes: {'; '.join(names) or 'nothing wrong'} ({target.log})")
    return len(names)


def fuzz(url: str, args: Namespace) -> tuple[int, dict[str, Any]]:
    """Run schemathesis in a temporary folder; return its exit status and its hooks' counts."""
    hooks = Path(__file__).with_name("hooks.py")
    only = [f"--include-path={path}" for path in args.only]
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.json")
        status = subprocess.run(
            [
                TOOL,
                "run",
                f"{url}/openapi.json",
                *options(args, args.cases // count_routes(url)),
                *only,
            ],
            cwd=folder,
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                "SCHEMATHESIS_HOOKS": str(hooks),
                "COUNTS": str(counts),
            },
            timeout=LIMIT_S + CASE_S * args.cases,
            check=False,
        ).returncode
        return status, json.loads(counts.read_text()) if counts.exists() else {}


def count_routes(url: str) -> int:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=60) as response:
        return len(json.load(response)["paths"])


def options(args: Namespace, examples: int) -> list[str]:
    return [
        "--checks=not_a_server_error",
        # "coverage" sends every field at its limits and with wrong types; "fuzzing" sends random
        # bodies.
        f"--phases={'coverage,fuzzing' if args.coverage else 'fuzzing'}",
        f"--max-examples={max(1, examples)}",
        # With more workers, schemathesis sometimes fails in a cache that its threads share.
        "--workers=1",
        "--continue-on-failure",
        "--request-timeout=60",
        "--suppress-health-check=all",
        "--generation-database=none",
        "--warnings=off",
    ]


def print_report(counts: dict[str, Any], calls: list[Call]) -> None:
    total = 0
    for name, statuses in sorted(counts.items()):
        cases = sum(statuses["statuses"].values())
        total += cases
        by_status = ", ".join(f"{n} x {code}" for code, n in sorted(statuses["statuses"].items()))
        print_line(f"{name:<34} {cases:>6}  slowest {statuses['slowest_s']:.2f} s  {by_status}")
    waits = sorted(call.seconds for call in calls)
    print_line(
        f"\nroutes: {total} cases on {len(counts)} routes; of {len(waits)} requests of the "
        f"neighbour, p99 {waits[int(len(waits) * 0.99)]:.2f} s, longest {waits[-1]:.2f} s"
    )
