"""Compares the streams of generated requests: with an event for each chunk, or for each token.

The engine runs in this process, and one request at a time: on a CPU, the log probabilities of a
request depend on the others that are computed with it.
"""

import asyncio
import json
import shutil
import time
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException
from model.conftest import launch_engine
from support import ROOT
from support.streams.checks import EventComparer, EventDifference, make_sender
from support.streams.requests import StreamRequest, stream_requests

from fuzz import print_line
from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

# Without a cache of prefixes, a request is computed in the same way each time.
OPTIONS = {
    "SERVED_MODEL_NAME": "demo",
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "TOOL_CALL_PARSER": "hermes",
    "ENABLE_PREFIX_CACHING": "0",
}
# The engines. Half of the requests go to each.
ENGINES: dict[str, dict[str, str]] = {
    "no reasoning": {},
    "reasoning": {"REASONING_PARSER": "qwen3"},
}
MAX_KINDS = 20


class Defect(AssertionError):
    """A request has a difference, and hypothesis is to shrink it."""


@dataclass
class Run:
    """The requests of a run, and the smallest one of each kind of difference."""

    args: Namespace
    comparer: EventComparer
    found: dict[str, tuple[StreamRequest, EventDifference]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        cases: int = self.args.cases
        return -(-cases // len(ENGINES))

    def compare(self) -> None:
        while self.comparer.requests < self.cases and len(self.found) < MAX_KINDS:
            self._compare_until_new_kind()

    def _compare_until_new_kind(self) -> None:
        """Send requests until all have been sent, or one has a new kind of difference."""
        comparer, new = self.comparer, dict[str, tuple[StreamRequest, EventDifference]]()

        @seed(self.args.seed + comparer.requests)
        @settings(
            max_examples=max(1, self.cases - comparer.requests),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(stream_requests)
        def compare_one(request: StreamRequest) -> None:
            if not new and comparer.requests >= self.cases:
                return
            differences = comparer.find_differences(request)
            self.counts.update(difference.kind for difference in differences)
            for difference in differences:
                kind = difference.kind
                if kind not in self.found and (not new or kind in new):
                    new[kind] = (request, difference)
                    raise Defect(kind)

        with suppress(Defect, HypothesisException):
            compare_one()
        self.found |= new
        for kind, (request, difference) in new.items():
            print_line(f"{kind}\n  {difference.detail[:700]}\n  {json.dumps(request.job())}")


def run(args: Namespace) -> int:
    """Compare the requested number of requests; return the number of kinds of differences."""
    folder = args.logs / "streams"
    shutil.rmtree(folder, ignore_errors=True)
    models = {
        "no reasoning": ROOT / ".models" / "demo",
        "reasoning": copy_with_reasoning(ROOT / ".models" / "demo", folder / "demo"),
    }
    return sum(run_engine(name, models[name], args) for name in ENGINES)


def copy_with_reasoning(model: Path, copy: Path) -> Path:
    """Copy the demo model to a new folder; the copy reasons where the model calls tools."""
    shutil.copytree(model, copy)
    for path in copy.glob("*token*.json"):
        path.write_text(path.read_text().replace("tool_call>", "think>"))
    return copy


def run_engine(name: str, model: Path, args: Namespace) -> int:
    began = time.monotonic()
    settings_ = Settings.from_env({"MODEL_NAME": str(model)})
    options = {**OPTIONS, **ENGINES[name]}
    with launch_engine(settings_, **options) as engine, asyncio.Runner() as runner:
        send = make_sender(Worker(Engines(engine), settings_), runner)
        # vLLM divides an answer without a stream in another way into reasoning and text.
        state = Run(args, EventComparer(send, compares_whole=name != "reasoning"))
        state.compare()
    comparer = state.comparer
    print_line(
        f"\nstreams ({name}): {comparer.requests} requests, {comparer.refused} refused, "
        f"{comparer.unstable} unstable; {time.monotonic() - began:.0f} s; "
        f"{len(state.found)} kinds of differences"
    )
    for kind, count in state.counts.most_common():
        print_line(f"{count:>5} x {kind}")
    return len(state.found)
