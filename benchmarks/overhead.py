"""Compares the throughput of jobs with that of the bare engine, in one process, 64 at a time.

    python benchmarks/overhead.py [--rounds 7] [--requests 128] [--only chat] [--model .models/demo]

Worker.handle is iterated on an event loop of its own, as the SDK does, but nothing is posted. The
bare side is vLLM's AsyncLLM.generate, called on the engine's own loop with the same prompts, of a
chat the text that its template makes. The demo model's engine steps are over before Python has
turned round, so this is the worst case: with any real model all figures are nearer to 1.

The sides alternate. Columns: tokens a second and this process's CPU time for each token, the
engine's core left out, medians of the rounds; the median of the rounds' ratios of throughput, the
lowest and the highest, and the goal. Exits with 1 if a goal is missed.
"""

import argparse
import asyncio
import os
import random
import re
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import handler  # noqa: E402 - found by the line above
from worker.app import Worker  # noqa: E402 - likewise

CONCURRENCY = 64
TOKENS = 64  # of each answer
SAMPLING: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
# In a body as in an event's JSON.
ENDED = re.compile(r"""finish_reason["']: ?["']length""")
ENVIRON = {"MAX_MODEL_LEN": "512", "VLLM_LOGGING_LEVEL": "ERROR"}


@dataclass(frozen=True)
class Row:
    """A kind of job, streamed or not, and what its throughput is to be of the bare engine's."""

    path: str
    stream: bool
    goal: float | None = None

    @property
    def title(self) -> str:
        return f"{self.path}, {'streamed' if self.stream else 'whole'}"

    @property
    def chat(self) -> bool:
        return self.path == "chat"

    def input(self, prompt: str) -> dict[str, Any]:
        if self.path == "raw":
            return {"prompt": prompt, "sampling_params": SAMPLING, "stream": self.stream}
        asked = {"messages": messages(prompt)} if self.chat else {"prompt": prompt}
        route = "/v1/chat/completions" if self.chat else "/v1/completions"
        return {"openai_route": route, "openai_input": {**asked, **SAMPLING, "stream": self.stream}}


ROWS = (
    Row("completions", stream=False, goal=0.9),
    Row("completions", stream=True, goal=0.7),
    Row("chat", stream=False),
    Row("chat", stream=True, goal=0.55),
    Row("raw", stream=False),
    Row("raw", stream=True),
)


@dataclass(frozen=True)
class Measured:
    """One side's figures in one round."""

    speed: float  # tokens a second
    cpu_us: float  # for each token


def messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def prompts(number: int) -> list[str]:
    rng = random.Random(7)
    words = "a small worker counts tokens".split()
    return [" ".join(rng.choices(words, k=8)) for _ in range(number)]


class Bench:
    """An engine, and its two sides: each answers one prompt of a row."""

    def __init__(self, engine: Any, worker: Worker) -> None:
        self._worker = worker
        self._loop = engine.loop
        self._client = engine._client  # the AsyncLLM itself, which the worker hides
        self._numbers = count()

    async def ours(self, row: Row, prompts: list[str]) -> Measured:
        async def one(prompt: str) -> None:
            job = {"id": f"job-{next(self._numbers)}", "input": row.input(prompt)}
            answer = "".join([str(chunk) async for chunk in self._worker.handle(job)])
            # The length ends it once all its tokens have come.
            if not ENDED.search(answer):
                raise RuntimeError(f"a job was answered {answer}")

        return await measured(one, prompts)

    async def bare(self, row: Row, prompts: list[str]) -> Measured:
        # Only now, when the worker has written what vLLM reads from the environment.
        from vllm import SamplingParams  # noqa: PLC0415 - see above
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - likewise

        kind = RequestOutputKind.DELTA if row.stream else RequestOutputKind.FINAL_ONLY
        texts = [self._rendered(prompt) for prompt in prompts] if row.chat else prompts

        async def one(text: str) -> None:
            params = SamplingParams(**SAMPLING, output_kind=kind)
            outputs = self._client.generate(text, params, f"bare-{next(self._numbers)}")
            tokens = sum([len(output.outputs[0].token_ids) async for output in outputs])
            if tokens != TOKENS:
                raise RuntimeError(f"the bare engine gave {tokens} tokens")

        answered = asyncio.run_coroutine_threadsafe(measured(one, texts), self._loop)
        return await asyncio.wrap_future(answered)

    def _rendered(self, prompt: str) -> str:
        text: str = self._client.renderer.tokenizer.apply_chat_template(
            messages(prompt), tokenize=False, add_generation_prompt=True
        )
        return text

    async def compare(self, row: Row, prompts: list[str], rounds: int) -> bool:
        """Measure and print a row; return whether its goal is met."""
        sides = {"ours": self.ours, "bare": self.bare}
        figures: dict[str, list[Measured]] = {side: [] for side in sides}
        for turn in range(-1, rounds):
            # Whichever comes second finds the machine as the first has left it.
            for side, answer in sorted(sides.items(), reverse=turn % 2 == 0):
                result = await answer(row, prompts)
                if turn >= 0:  # the first turn is a warm-up
                    figures[side].append(result)
        pairs = zip(figures["ours"], figures["bare"], strict=True)
        ratios = [ours.speed / bare.speed for ours, bare in pairs]
        ratio = statistics.median(ratios)
        print(
            f"{row.title:21} | {' | '.join(medians(figures[side]) for side in sides)} | "
            f"{ratio:5.2f} {min(ratios):5.2f} {max(ratios):5.2f} | {row.goal or '':>4}",
            flush=True,
        )
        return row.goal is None or ratio >= row.goal


async def measured(one: Callable[[str], Awaitable[None]], prompts: list[str]) -> Measured:
    """Answer all prompts, so many at a time, on this loop."""

    async def client(waiting: Iterator[str]) -> None:
        for prompt in waiting:
            await one(prompt)

    waiting = iter(prompts)
    began, cpu_began = time.perf_counter(), cpu_s()
    async with asyncio.TaskGroup() as clients:
        for _ in range(CONCURRENCY):
            clients.create_task(client(waiting))
    tokens = TOKENS * len(prompts)
    cpu_us = 1e6 * (cpu_s() - cpu_began) / tokens
    return Measured(tokens / (time.perf_counter() - began), cpu_us)


def cpu_s() -> float:
    """How much CPU time this process has used; the engine's core is another."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def medians(rounds: list[Measured]) -> str:
    speed = statistics.median(one.speed for one in rounds)
    return f"{speed:8,.0f} {statistics.median(one.cpu_us for one in rounds):6.0f}"


async def main(bench: Bench, args: argparse.Namespace) -> bool:
    """Measure and print all rows; return whether every goal is met."""
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; {args.requests} answers of "
        f"{TOKENS} tokens, {CONCURRENCY} at a time; medians of {args.rounds}"
    )
    print(f"{'':21} | {'jobs':8} {'':6} | {'bare':8} {'':6} | {'jobs/bare':17} |")
    print(
        f"{'':21} |{' tokens/s CPU us |' * 2} {'ratio':>5} {'least':>5} {'most':>5} | goal",
        flush=True,
    )
    asked = prompts(args.requests)
    met = {
        row.title: await bench.compare(row, asked, args.rounds)
        for row in ROWS
        if args.only in (None, row.path)
    }
    missed = [title for title, good in met.items() if not good]
    print(f"goals missed: {'; '.join(missed) or 'none'}")
    return not missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--only", choices=sorted({row.path for row in ROWS}))
    parser.add_argument("--model", default=str(ROOT / ".models" / "demo"))
    arguments = parser.parse_args()
    os.environ.update(ENVIRON, MODEL_NAME=arguments.model)
    with handler.started() as (engines, settings):
        bench = Bench(engines.main, Worker(engines, settings))
        good = asyncio.run(main(bench, arguments))
    sys.exit(0 if good else 1)
