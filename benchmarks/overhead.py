"""Measures what receipts and metrics cost, in one process, with 64 jobs at a time.

    python benchmarks/overhead.py [--rounds 31] [--requests 128] [--only chat] [--model DIRECTORY]

Worker.handle is iterated on its own event loop, as the SDK does, but nothing is posted. Jobs with
everything on (receipts in the answers and on a volume, metrics pushed to a receiver every 15
seconds) alternate with the same jobs without. The ratio of their throughputs is too near 1 to be
measured, so the goal is for the additional CPU time, which the engine loses. The demo model's
engine steps take almost no time, so this is the worst case.

Columns: tokens per second, and this process's CPU time per token without the engine core (medians
of the rounds); the ratio of the throughputs (median, minimum and maximum of the rounds); the
additional CPU time in percent of the machine's; and the goal. The exit status is 1 if a goal is
missed.
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import bench
from prometheus_client import REGISTRY

import handler
from proof.measure import loads
from proof.measure.comparison import turns
from proof.measure.processes import Lost
from worker.app import Worker
from worker.engine import Engines
from worker.metrics import MergedRegistries, otlp, push
from worker.settings import Settings
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings

CONCURRENCY = 64
TOKENS = 64  # per answer
SAMPLING: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
# Matches a Python dict as well as the JSON of an event.
FULL_LENGTH = re.compile(r"""finish_reason["']: ?["']length""")
SIDES = ("observed", "jobs")
# Maximum additional CPU time of observed jobs, in percent of the machine's.
GOAL = 1.0
# A receiver that accepts everything, in another process. It prints its port.
RECEIVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_): ...

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
ENVIRON = {"MAX_MODEL_LEN": "512", "VLLM_LOGGING_LEVEL": "ERROR"}


@dataclass(frozen=True)
class JobKind:
    """A kind of job: one row of the table."""

    path: str
    stream: bool

    @property
    def title(self) -> str:
        return f"{self.path}, {'streamed' if self.stream else 'whole'}"

    def input(self, prompt: str) -> dict[str, Any]:
        if self.path == "raw":
            return {"prompt": prompt, "sampling_params": SAMPLING, "stream": self.stream}
        route = "/v1/completions"
        body: dict[str, Any] = {"prompt": prompt}
        if self.path == "chat":
            messages = [{"role": "user", "content": prompt}]
            route, body = "/v1/chat/completions", {"messages": messages}
        return {"openai_route": route, "openai_input": {**body, **SAMPLING, "stream": self.stream}}


JOB_KINDS = [
    JobKind(path, stream) for path in ("completions", "chat", "raw") for stream in (False, True)
]


@dataclass(frozen=True)
class Figures:
    """The figures of one side in one round: tokens per second, and CPU time per token."""

    speed: float
    cpu_us: float


class Comparison:
    """Both sides, on one engine.

    Args:
        engines: The engines of both workers.
        settings: The settings of the worker of plain jobs.
        volume: Directory for the receipts of the other worker.
        receiver: Address of the receiver of its metrics.
    """

    def __init__(self, engines: Engines, settings: Settings, volume: Path, receiver: str) -> None:
        engine: Any = engines.main_engine
        self._numbers = count()
        observed = {"receipts": True, "gpu_price_per_second": 0.001, "base_path": volume}
        observed["otel_exporter_otlp_endpoint"] = receiver
        observed_settings = settings.model_copy(update=observed)
        self._worker = Worker(engines, settings)
        self._observed_worker = Worker(engines, observed_settings)
        self._exporter = otlp.create_exporter(observed_settings)
        self._registries = MergedRegistries([REGISTRY, engine.metrics])
        # Seconds of observed rounds since the last push.
        self._unpushed_s = 0.0

    async def run_observed(self, job_kind: JobKind, prompts: list[str]) -> Figures:
        pushing = None
        if self._unpushed_s >= push.INTERVAL_S:
            self._unpushed_s = 0.0
            pushing = asyncio.create_task(asyncio.to_thread(self._push))
        begin = time.perf_counter()
        figures = await self.run_jobs(job_kind, prompts, self._observed_worker, receipt=True)
        self._unpushed_s += time.perf_counter() - begin
        if pushing:
            await pushing
        return figures

    def _push(self) -> None:
        metrics = otlp.convert_metrics(self._registries.collect(), otlp.create_resource({}))
        if self._exporter.export(metrics) is not otlp.SUCCESS:
            raise Lost("a push failed")

    async def run_jobs(
        self, job_kind: JobKind, prompts: list[str], worker: Worker | None = None, **keys: Any
    ) -> Figures:
        """Answer all prompts, CONCURRENCY of them at a time; by default with plain jobs."""
        worker = worker or self._worker
        waiting = iter(prompts)

        async def call() -> None:
            for prompt in waiting:
                job = {"id": f"job-{next(self._numbers)}", "input": job_kind.input(prompt) | keys}
                text = "".join([str(chunk) async for chunk in worker.handle(job)])
                # Only an answer with all its tokens ends because of its length.
                has_receipt = "receipt" not in keys or "gpu_seconds" in text
                if not FULL_LENGTH.search(text) or not has_receipt:
                    raise Lost(f"a job was answered {text}")

        start, cpu_start = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as callers:
            for _ in range(CONCURRENCY):
                callers.create_task(call())
        tokens = TOKENS * len(prompts)
        speed = tokens / (time.perf_counter() - start)
        return Figures(speed, 1e6 * (time.process_time() - cpu_start) / tokens)

    async def compare(self, job_kind: JobKind, prompts: list[str], rounds: int) -> bool:
        """Measure and print a row; return whether its goal is met."""
        runs = {"observed": self.run_observed, "jobs": self.run_jobs}
        figures: dict[str, list[Figures]] = {side: [] for side in SIDES}
        for number, side in turns(SIDES, rounds, warm_ups=1):
            result = await runs[side](job_kind, prompts)
            if number >= 0:
                figures[side].append(result)
        pairs = list(zip(*figures.values(), strict=True))
        ratios = sorted(ours.speed / theirs.speed for ours, theirs in pairs)
        # In percent of the machine's CPU time, at the speed of the plain jobs.
        percent = 100 / (1e6 * (os.cpu_count() or 1))
        added = statistics.median(
            percent * (ours.cpu_us - theirs.cpu_us) * theirs.speed for ours, theirs in pairs
        )
        print(
            f"{job_kind.title:21} | {' | '.join(cells(figures[side]) for side in SIDES)} | "
            f"{statistics.median(ratios):5.3f} {ratios[0]:5.2f} {ratios[-1]:5.2f} | {added:5.1f} | "
            f"<= {GOAL}",
            flush=True,
        )
        return bool(added <= GOAL)


def cells(rounds: list[Figures]) -> str:
    speed = statistics.median(figures.speed for figures in rounds)
    return f"{speed:8,.0f} {statistics.median(figures.cpu_us for figures in rounds):6.0f}"


async def main(comparison: Comparison, args: argparse.Namespace) -> bool:
    """Measure and print all rows; return whether every goal is met."""
    print(
        f"{bench.machine()}; {args.requests} answers of "
        f"{TOKENS} tokens, {CONCURRENCY} at a time; medians of {args.rounds}"
    )
    first, second = SIDES
    print(
        f"{'':21} | {first:8} {'':6} | {second:8} {'':6} | {f'{first}/{second}':17} | CPU + |\n"
        f"{'':21} |{' tokens/s CPU us |' * 2} {'ratio':>5} {'least':>5} {'most':>5} |     % | goal",
        flush=True,
    )
    prompts = loads.prompts(args.requests)
    results = {
        kind.title: await comparison.compare(kind, prompts, args.rounds)
        for kind in JOB_KINDS
        if args.only in (None, kind.path)
    }
    print(f"goals missed: {'; '.join(title for title in results if not results[title]) or 'none'}")
    return all(results.values())


if __name__ == "__main__":
    parser = bench.options(__doc__, rounds=31)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--only", choices=sorted({kind.path for kind in JOB_KINDS}))
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    arguments = parser.parse_args()
    os.environ.update(ENVIRON, MODEL_NAME=arguments.model)
    with (
        subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE) as sink,
        tempfile.TemporaryDirectory() as directory,
        handler.start_engines(gather_settings(environ_with_secrets())) as (engines, settings),
    ):
        assert sink.stdout
        receiver = f"http://127.0.0.1:{int(sink.stdout.readline())}"
        comparison = Comparison(engines, settings, Path(directory), receiver)
        is_met = asyncio.run(main(comparison, arguments))
        sink.kill()
    sys.exit(0 if is_met else 1)
