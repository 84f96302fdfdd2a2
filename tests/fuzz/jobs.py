"""Sends jobs that hypothesis generates, a batch at once, beside a well-behaved caller.

An answer with a 5xx that is no full worker's is shrunk to the smallest job that has it. The jobs of
a batch that takes too long, ends a process or lets the other caller wait are kept as they are.
Each failure is a file that repeats it.
"""

import json
import re
import time
from argparse import Namespace
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from fuzz.attacks import print_line
from fuzz.neighbour import Neighbour, longest_s, neighbour
from fuzz.raw_jobs import job
from fuzz.target import Endpoint, Outcome

# With a short context no answer takes long.
SETTINGS = {"MAX_MODEL_LEN": "256"}
LIMIT_S = 60.0
AT_ONCE = 24
# Seconds that the neighbour may wait longer than alone, beside so many.
MOST_WAIT_S = 1.0
# Kinds of failures after which there is no point in going on.
ENOUGH = 20


class Defect(Exception):
    """A job was answered with a 5xx."""


@dataclass
class Beside:
    """An endpoint and its well-behaved caller."""

    target: Endpoint
    neighbour: Neighbour
    threads: ThreadPoolExecutor
    pids: list[int]
    began: float = 0.0

    def send(self, jobs: list[Any]) -> list[Outcome]:
        """Send jobs, all at once."""
        self.began = time.monotonic()
        return list(self.threads.map(lambda one: self.target.send(one, LIMIT_S), jobs))

    def wait_s(self) -> float:
        """Return how long the neighbour waited for an answer since they were sent."""
        return longest_s(self.neighbour.during(self.began))

    @property
    def limit_s(self) -> float:
        return self.neighbour.alone_s + MOST_WAIT_S

    @property
    def unharmed(self) -> bool:
        return self.target.pids == self.pids and self.neighbour.well


@dataclass
class Run:
    """What was sent, and how it ended."""

    args: Namespace
    sent: int = 0
    statuses: Counter[int | None] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    longest_s: float = 0.0
    # The endpoint has to be started again.
    spoilt: bool = False

    def endpoint(self) -> None:
        """Start an endpoint, and send jobs until all are sent or it is of no use any more."""
        target = Endpoint(self.args.checkout, self.args.logs / "jobs", SETTINGS)
        with ExitStack() as stack:
            stack.enter_context(target.started())
            other = stack.enter_context(neighbour(target))
            threads = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
            beside = Beside(target, other, threads, target.pids)
            self.spoilt = False
            while not self.spoilt and not self.ended:
                self._round(beside)

    @property
    def ended(self) -> bool:
        return self.sent >= self.args.jobs or len(self.failures) >= ENOUGH

    def _round(self, beside: Beside) -> None:
        """Send batches until all are sent, or one has an answer that it should not have."""
        found: dict[str, tuple[Any, str]] = {}

        @seed(self.args.seed + self.sent)
        @settings(
            max_examples=max(1, (self.args.jobs - self.sent) // AT_ONCE),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(job, min_size=AT_ONCE // 2, max_size=AT_ONCE))
        def batch(jobs: list[Any]) -> None:
            if self.spoilt or (not found and self.ended):
                return
            outcomes = beside.send(jobs)
            self.sent += len(jobs)
            self.statuses.update(outcome.status for outcome in outcomes)
            self._look(jobs, outcomes, beside)
            for one, outcome in zip(jobs, outcomes, strict=True):
                kind = _kind(outcome)
                if kind and kind not in self.failures:
                    found[kind] = (one, outcome.text)
                    raise Defect(kind)

        with suppress(Defect, HypothesisException, ExceptionGroup):
            batch()
        for kind, (one, said) in found.items():
            self._fail(kind, [one], said)

    def _look(self, jobs: list[Any], outcomes: list[Outcome], beside: Beside) -> None:
        """Note what can't be shrunk: a job without an end, a process with one, a long wait."""
        late = [one for one, outcome in zip(jobs, outcomes, strict=True) if outcome.status is None]
        wait_s, alive = beside.wait_s(), beside.unharmed
        if late:
            self._fail("no answer in time", late)
        elif not alive:
            self._fail("a process ended, or the neighbour was failed", jobs)
        elif wait_s > beside.limit_s:
            # A busy machine lengthens it, too: once more.
            beside.send(jobs)
            wait_s = min(wait_s, beside.wait_s())
            if wait_s > beside.limit_s:
                self._fail("the neighbour waited", jobs, f"{wait_s:.1f} s")
        self.longest_s = max(self.longest_s, wait_s)
        self.spoilt = bool(late) or not alive

    def _fail(self, kind: str, jobs: list[Any], said: str = "") -> None:
        if kind in self.failures:
            return
        folder: Path = self.args.logs
        files = []
        for one in jobs:
            files.append(folder / f"failing-{len(list(folder.glob('failing-*')))}.json")
            files[-1].write_text(json.dumps({"input": one}))
        self.failures[kind] = ", ".join(file.name for file in files)
        print_line(f"{kind}: {said[:300]}\n  {self.failures[kind]}")


def _kind(outcome: Outcome) -> str:
    """Return what is wrong with an answer, without what differs from one to the next."""
    if outcome.honest or outcome.status is None:
        return ""
    said = re.sub(r"[0-9a-f-]{8,}|\d+", "#", outcome.text)
    return f"status {outcome.status}: {said[:80]}"


def run(args: Namespace) -> int:
    """Send as many jobs as were asked for; return how many kinds of failures there were."""
    for old in args.logs.glob("failing-*.json"):
        old.unlink()
    began, state = time.monotonic(), Run(args)
    while not state.ended:
        state.endpoint()
    statuses = ", ".join(f"{count} x {status}" for status, count in state.statuses.most_common())
    print_line(
        f"\njobs: {state.sent} in {time.monotonic() - began:.0f} s: {statuses}; "
        f"the neighbour's longest wait {state.longest_s:.2f} s; {len(state.failures)} failures"
    )
    for kind, files in state.failures.items():
        print_line(f"  {kind}: {files}")
    if state.failures:
        print_line(
            f"Repeat one with: {' '.join(map('='.join, SETTINGS.items()))} make endpoint, and then"
            "\n  curl -s localhost:8000/v2/local/runsync -H 'Content-Type: application/json' "
            f"-d @{args.logs}/failing-0.json"
        )
    return len(state.failures)
