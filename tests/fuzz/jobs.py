"""Sends batches of concurrent jobs that hypothesis generates, next to a well-behaved caller.

If a response has a 5xx status (except from a full worker), the job is shrunk to the smallest one
with the same status. If a batch takes too long, ends a process or delays the other caller, its jobs
are stored unchanged. Each failure is a file with which it can be repeated.
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

from fuzz import print_line
from fuzz.neighbour import Neighbour, longest_s, start_neighbour
from fuzz.raw_jobs import any_job
from fuzz.target import Endpoint, Outcome

# With a short context, no answer takes long.
SETTINGS = {"MAX_MODEL_LEN": "256"}
LIMIT_S = 60.0
CONCURRENCY = 24
# Seconds that the neighbour may wait longer next to this many callers than alone.
MAX_EXTRA_WAIT_S = 1.0
# The run stops after this many kinds of failures.
MAX_FAILURE_KINDS = 20


class Defect(Exception):
    """A job failed with a 5xx status."""


@dataclass
class WatchedEndpoint:
    """An endpoint and its well-behaved caller."""

    target: Endpoint
    neighbour: Neighbour
    threads: ThreadPoolExecutor
    pids: list[int]
    started_at: float = 0.0

    def send(self, jobs: list[Any]) -> list[Outcome]:
        """Send jobs concurrently."""
        self.started_at = time.monotonic()
        return list(self.threads.map(lambda job: self.target.send(job, LIMIT_S), jobs))

    def wait_s(self) -> float:
        """Return the neighbour's longest wait for a response since the last batch was sent."""
        return longest_s(self.neighbour.calls_since(self.started_at))

    @property
    def limit_s(self) -> float:
        return self.neighbour.alone_s + MAX_EXTRA_WAIT_S

    @property
    def is_unharmed(self) -> bool:
        return self.neighbour.is_healthy and not self.target.has_lost(self.pids)


@dataclass
class JobsRun:
    """The jobs of a run and their results."""

    args: Namespace
    sent: int = 0
    statuses: Counter[int | None] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    longest_s: float = 0.0
    # Whether the endpoint must be restarted.
    needs_restart: bool = False

    def run_endpoint(self) -> None:
        """Start an endpoint and send jobs until all have been sent or it must be restarted."""
        target = Endpoint(self.args.checkout, self.args.logs / "jobs", SETTINGS)
        with ExitStack() as stack:
            stack.enter_context(target.start())
            neighbour = stack.enter_context(start_neighbour(target))
            threads = stack.enter_context(ThreadPoolExecutor(CONCURRENCY))
            watched = WatchedEndpoint(target, neighbour, threads, target.pids)
            self.needs_restart = False
            while not self.needs_restart and not self.is_finished:
                self._send_batches(watched)

    @property
    def is_finished(self) -> bool:
        return self.sent >= self.args.jobs or len(self.failures) >= MAX_FAILURE_KINDS

    def _send_batches(self, watched: WatchedEndpoint) -> None:
        """Send batches until all jobs have been sent or a job has a new kind of failure."""
        new_failures: dict[str, tuple[Any, str]] = {}

        @seed(self.args.seed + self.sent)
        @settings(
            max_examples=max(1, (self.args.jobs - self.sent) // CONCURRENCY),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(any_job, min_size=CONCURRENCY // 2, max_size=CONCURRENCY))
        def batch(jobs: list[Any]) -> None:
            if self.needs_restart or (not new_failures and self.is_finished):
                return
            outcomes = watched.send(jobs)
            self.sent += len(jobs)
            self.statuses.update(outcome.status for outcome in outcomes)
            self._check_batch(jobs, outcomes, watched)
            for job, outcome in zip(jobs, outcomes, strict=True):
                kind = _failure_kind(outcome)
                if kind and kind not in self.failures:
                    new_failures[kind] = (job, outcome.text)
                    raise Defect(kind)

        with suppress(Defect, HypothesisException, ExceptionGroup):
            batch()
        for kind, (job, text) in new_failures.items():
            self._record_failure(kind, [job], text)

    def _check_batch(
        self, jobs: list[Any], outcomes: list[Outcome], watched: WatchedEndpoint
    ) -> None:
        """Record failures that can't be shrunk: unanswered jobs, exited processes, long waits."""
        unanswered = [
            job for job, outcome in zip(jobs, outcomes, strict=True) if outcome.status is None
        ]
        wait_s, is_alive = watched.wait_s(), watched.is_unharmed
        if unanswered:
            self._record_failure("no answer in time", unanswered)
        elif not is_alive:
            self._record_failure("a process exited, or a request of the neighbour failed", jobs)
        elif wait_s > watched.limit_s:
            # A busy machine also lengthens the wait, so try again.
            watched.send(jobs)
            wait_s = min(wait_s, watched.wait_s())
            if wait_s > watched.limit_s:
                self._record_failure("the neighbour waited", jobs, f"{wait_s:.1f} s")
        self.longest_s = max(self.longest_s, wait_s)
        self.needs_restart = bool(unanswered) or not is_alive

    def _record_failure(self, kind: str, jobs: list[Any], text: str = "") -> None:
        if kind in self.failures:
            return
        folder: Path = self.args.logs
        files = []
        for job in jobs:
            files.append(folder / f"failing-{len(list(folder.glob('failing-*')))}.json")
            files[-1].write_text(json.dumps({"input": job}))
        self.failures[kind] = ", ".join(file.name for file in files)
        print_line(f"{kind}: {text[:300]}\n  {self.failures[kind]}")


def _failure_kind(outcome: Outcome) -> str:
    """Return a description of a failed outcome without ids and numbers; empty if it didn't fail."""
    if outcome.is_handled or outcome.status is None:
        return ""
    text = re.sub(r"[0-9a-f-]{8,}|\d+", "#", outcome.text)
    return f"status {outcome.status}: {text[:80]}"


def run(args: Namespace) -> int:
    """Send the requested number of jobs; return the number of kinds of failures."""
    for old in args.logs.glob("failing-*.json"):
        old.unlink()
    started_at, state = time.monotonic(), JobsRun(args)
    while not state.is_finished:
        state.run_endpoint()
    statuses = ", ".join(f"{count} x {status}" for status, count in state.statuses.most_common())
    print_line(
        f"\njobs: {state.sent} in {time.monotonic() - started_at:.0f} s: {statuses}; "
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
