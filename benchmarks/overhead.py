"""Compares the throughput of jobs with the bare engine's, in one process, with 64 at a time.

    python benchmarks/overhead.py [--rounds 7] [--requests 128] [--only chat] [--model .models/demo]

Worker.handle is iterated on its own event loop, as the SDK does, but nothing is posted. The bare
side is vLLM's AsyncLLM.generate, called on the engine's loop with the same prompts (for chat:
rendered by the template). The demo model's engine steps take almost no time, so this is the worst
case; with any real model, all figures are nearer to 1.

The sides alternate. Columns: tokens per second, and this process's CPU time per token without the
engine core (medians of the rounds); the ratio of the throughputs (median, minimum and maximum of
the rounds), and its goal. The exit status is 1 if a goal is missed.
"""

import argparse
import asyncio
import os
import re
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import bench

import handler
from worker.app import Worker
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings

CONCURRENCY = 64
TOKENS = 64  # per answer
SAMPLING: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
# Matches a Python dict as well as the JSON of an event.
FULL_LENGTH = re.compile(r"""finish_reason["']: ?["']length""")
ENVIRON = {"MAX_MODEL_LEN": "512", "VLLM_LOGGING_LEVEL": "ERROR"}


@dataclass(frozen=True)
class JobKind:
    """A kind of job: one row of the table."""

    path: str
    stream: bool
    goal: float | None = None  # minimum ratio to the bare engine's throughput

    @property
    def title(self) -> str:
        return f"{self.path}, {'streamed' if self.stream else 'whole'}"

    @property
    def is_chat(self) -> bool:
        return self.path == "chat"

    def input(self, prompt: str) -> dict[str, Any]:
        if self.path == "raw":
            return {"prompt": prompt, "sampling_params": SAMPLING, "stream": self.stream}
        body = {"messages": messages(prompt)} if self.is_chat else {"prompt": prompt}
        route = "/v1/chat/completions" if self.is_chat else "/v1/completions"
        return {"openai_route": route, "openai_input": {**body, **SAMPLING, "stream": self.stream}}


JOB_KINDS = (
    JobKind("completions", stream=False, goal=0.9),
    JobKind("completions", stream=True, goal=0.7),
    JobKind("chat", stream=False),
    JobKind("chat", stream=True, goal=0.55),
    JobKind("raw", stream=False),
    JobKind("raw", stream=True),
)


@dataclass(frozen=True)
class Figures:
    """The figures of one side in one round."""

    speed: float  # tokens per second
    cpu_us: float  # per token


def messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


class Comparison:
    """Both sides, on one engine."""

    def __init__(self, engine: Any, worker: Worker) -> None:
        self._worker = worker
        self._loop = engine.loop
        self._client = engine._client  # the AsyncLLM itself
        self._numbers = count()

    async def run_jobs(self, job_kind: JobKind, prompts: list[str]) -> Figures:
        async def answer(prompt: str) -> None:
            job = {"id": f"job-{next(self._numbers)}", "input": job_kind.input(prompt)}
            text = "".join([str(chunk) async for chunk in self._worker.handle(job)])
            # Only an answer with all its tokens ends because of its length.
            if not FULL_LENGTH.search(text):
                raise bench.Lost(f"a job was answered {text}")

        return await measure(answer, prompts)

    async def run_bare(self, job_kind: JobKind, prompts: list[str]) -> Figures:
        # Not imported at the top, because vLLM reads variables that the worker sets first.
        from vllm import SamplingParams  # noqa: PLC0415 - see above
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - it reads variables

        kind = RequestOutputKind.DELTA if job_kind.stream else RequestOutputKind.FINAL_ONLY
        texts = [self._render(prompt) for prompt in prompts] if job_kind.is_chat else prompts

        async def answer(text: str) -> None:
            params = SamplingParams(**SAMPLING, output_kind=kind)
            outputs = self._client.generate(text, params, f"bare-{next(self._numbers)}")
            tokens = sum([len(output.outputs[0].token_ids) async for output in outputs])
            if tokens != TOKENS:
                raise bench.Lost(f"the bare engine gave {tokens} tokens")

        future = asyncio.run_coroutine_threadsafe(measure(answer, texts), self._loop)
        return await asyncio.wrap_future(future)

    def _render(self, prompt: str) -> str:
        text: str = self._client.renderer.tokenizer.apply_chat_template(
            messages(prompt), tokenize=False, add_generation_prompt=True
        )
        return text

    async def compare(self, job_kind: JobKind, prompts: list[str], rounds: int) -> bool:
        """Measure and print a row; return whether its goal is met."""
        sides = {"jobs": self.run_jobs, "bare": self.run_bare}
        figures: dict[str, list[Figures]] = {side: [] for side in sides}
        for turn in range(-1, rounds):
            # The order alternates because the first side warms the machine up for the second.
            for side, run in sorted(sides.items(), reverse=turn % 2 == 0):
                result = await run(job_kind, prompts)
                if turn >= 0:  # the first turn is a warm-up
                    figures[side].append(result)
        pairs = zip(figures["jobs"], figures["bare"], strict=True)
        ratios = [jobs.speed / bare.speed for jobs, bare in pairs]
        ratio = statistics.median(ratios)
        print(
            f"{job_kind.title:21} | {' | '.join(medians(figures[side]) for side in sides)} | "
            f"{ratio:5.2f} {min(ratios):5.2f} {max(ratios):5.2f} | {job_kind.goal or '':>4}",
            flush=True,
        )
        return job_kind.goal is None or ratio >= job_kind.goal


async def measure(answer: Callable[[str], Awaitable[None]], prompts: list[str]) -> Figures:
    """Answer all prompts on this event loop, CONCURRENCY of them at a time."""

    async def client(waiting: Iterator[str]) -> None:
        for prompt in waiting:
            await answer(prompt)

    waiting = iter(prompts)
    start, cpu_start = time.perf_counter(), cpu_s()
    async with asyncio.TaskGroup() as clients:
        for _ in range(CONCURRENCY):
            clients.create_task(client(waiting))
    tokens = TOKENS * len(prompts)
    cpu_us = 1e6 * (cpu_s() - cpu_start) / tokens
    return Figures(tokens / (time.perf_counter() - start), cpu_us)


def cpu_s() -> float:
    """Return the CPU seconds of this process, without the engine core."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def medians(rounds: list[Figures]) -> str:
    speed = statistics.median(figures.speed for figures in rounds)
    return f"{speed:8,.0f} {statistics.median(figures.cpu_us for figures in rounds):6.0f}"


async def main(comparison: Comparison, args: argparse.Namespace) -> bool:
    """Measure and print all rows; return whether every goal is met."""
    print(
        f"{bench.machine()}; {args.requests} answers of "
        f"{TOKENS} tokens, {CONCURRENCY} at a time; medians of {args.rounds}"
    )
    print(f"{'':21} | {'jobs':8} {'':6} | {'bare':8} {'':6} | {'jobs/bare':17} |")
    print(
        f"{'':21} |{' tokens/s CPU us |' * 2} {'ratio':>5} {'least':>5} {'most':>5} | goal",
        flush=True,
    )
    prompts = bench.prompts(args.requests)
    results = {
        kind.title: await comparison.compare(kind, prompts, args.rounds)
        for kind in JOB_KINDS
        if args.only in (None, kind.path)
    }
    missed = [title for title, is_met in results.items() if not is_met]
    print(f"goals missed: {'; '.join(missed) or 'none'}")
    return not missed


if __name__ == "__main__":
    parser = bench.options(__doc__, rounds=7)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--only", choices=sorted({kind.path for kind in JOB_KINDS}))
    parser.add_argument("--model", default=str(bench.DEMO_MODEL))
    arguments = parser.parse_args()
    os.environ.update(ENVIRON, MODEL_NAME=arguments.model)
    with handler.start_engines(gather_settings(environ_with_secrets())) as (engines, settings):
        comparison = Comparison(engines.main_engine, Worker(engines, settings))
        is_met = asyncio.run(main(comparison, arguments))
    sys.exit(0 if is_met else 1)
