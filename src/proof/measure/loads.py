"""Loads: their requests over HTTP, the arrivals of the tokens, and the figures.

The callers do as little work as possible: they parse only the last event of an answer. They are in
this process, or share the load between several, so that no process limits it:

    PYTHONPATH=src python -m proof.measure.loads BASE ARGUMENTS

The command prints "ready", waits for a line, sends its requests, and prints the answers.
"""

import asyncio
import itertools
import json
import os
import random
import re
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import aiohttp
from pydantic import TypeAdapter

from proof.measure.processes import ROOT, Lost, next_line, run_process

# Arrivals of the tokens of an answer: milliseconds since the request was sent, and the number of
# tokens received by then.
Arrivals = list[tuple[float, int]]
# The ids of an event's tokens, and the marker of the event with the usage, which is the only one
# that is parsed.
IDS, USAGE = re.compile(rb'"token_ids": ?\[([^\]]+)'), b'"usage":{'
LIMIT_S = 120.0


@dataclass(frozen=True)
class Load:
    """Requests of callers who each send the next one when they get a response."""

    callers: int
    requests: int  # of all callers together
    tokens: int = 64  # exact number in each answer
    stream: bool = True
    processes: int = 1  # that share the callers; with 1, they are in this process


@dataclass
class Answer:
    """The arrivals of the tokens of one answer, in seconds of a monotonic clock."""

    sent: float
    # Time of each read, and its number of tokens.
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0

    def since_sent(self) -> Arrivals:
        counts = itertools.accumulate(count for _, count in self.arrivals)
        times = (round(1000 * (at - self.sent), 3) for at, _ in self.arrivals)
        return list(zip(times, counts, strict=True))

    @property
    def gaps(self) -> list[float]:
        """The seconds between consecutive tokens; 0 between tokens of the same read."""
        found: list[float] = []
        for (before, _), (at, count) in itertools.pairwise(self.arrivals):
            found += [at - before, *[0.0] * (count - 1)]
        return found


ANSWERS = TypeAdapter(list[Answer])


def prompts(count: int, seed: int = 0) -> list[str]:
    """Return prompts of eight words, always the same ones for a seed."""
    rng = random.Random(7 + seed)
    words = "a small worker counts tokens".split()
    return [" ".join(rng.choices(words, k=8)) for _ in range(count)]


def chat(prompt: str, tokens: int) -> dict[str, Any]:
    """Return the body of a greedy chat whose answer has exactly this number of tokens."""
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def body(model: str, prompt: str, load: Load) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    streamed = {"stream": load.stream, **(usage if load.stream else {})}
    return {"model": model, **chat(prompt, load.tokens), **streamed}


async def send(base: str, models: Sequence[str], load: Load) -> list[Answer]:
    """Send the requests of a load from all its processes; they name the ``models`` in turn.

    ``base`` is the URL of the OpenAI API, including its version.
    """
    if load.processes == 1:
        return await _send_here(base, models, load)
    share = replace(
        load,
        callers=load.callers // load.processes,
        requests=load.requests // load.processes,
        processes=1,
    )
    async with AsyncExitStack() as stack:
        processes = []
        for number in range(load.processes):
            arguments = json.dumps({"models": list(models), "load": asdict(share), "seed": number})
            command = (sys.executable, "-m", __name__, base, arguments)
            environ = {"PYTHONPATH": str(ROOT / "src")}
            running = run_process(command, environ, stdin=PIPE)
            processes.append(await stack.enter_async_context(running))
        for process in processes:
            await next_line(process, "ready")
        # All are awaited before an error is raised.
        outputs = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    answers = []
    for process, (output, _) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise Lost(f"a caller failed: {output.decode().strip()}")
        answers += ANSWERS.validate_json(output)
    return answers


async def _send_here(base: str, models: Sequence[str], load: Load, seed: int = 0) -> list[Answer]:
    waiting = zip(prompts(load.requests, seed), itertools.cycle(models), strict=False)
    answers: list[Answer] = []
    connector = aiohttp.TCPConnector(limit=load.callers)
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:

        async def call() -> None:
            for prompt, model in waiting:
                answer = Answer(time.perf_counter())
                url = f"{base}/chat/completions"
                async with client.post(url, json=body(model, prompt, load)) as response:
                    if response.status != 200:
                        raise Lost(f"{response.status}: {await response.text()}")
                    if load.stream:
                        await _read_stream(response, answer)
                    else:
                        whole = await response.json(content_type=None)
                        answer.arrivals.append((time.perf_counter(), 1))
                        answer.tokens = whole["usage"]["completion_tokens"]
                answer.ended = time.perf_counter()
                if answer.tokens != load.tokens:
                    raise Lost(f"an answer has {answer.tokens} of {load.tokens} tokens")
                answers.append(answer)

        await asyncio.gather(*(call() for _ in range(load.callers)))
    return answers


async def _read_stream(response: aiohttp.ClientResponse, answer: Answer) -> None:
    rest, last = b"", b""
    async for part in response.content.iter_any():
        *events, rest = (rest + part).split(b"\n\n")
        if count := sum(ids.count(b",") + 1 for event in events for ids in IDS.findall(event)):
            answer.arrivals.append((time.perf_counter(), count))
        last = next((event for event in reversed(events) if USAGE in event), last)
    if last:
        answer.tokens = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"]


@dataclass(frozen=True)
class Measurement:
    """The figures of a load by their names, and the arrivals of the tokens of its first answer."""

    figures: dict[str, float]
    arrivals: Arrivals


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def figures(answers: Sequence[Answer], **cpu_ms: float) -> dict[str, float]:
    """Return the figures of a load: its rates, times in milliseconds, and ``cpu_figures``."""
    seconds = max(a.ended for a in answers) - min(a.sent for a in answers)
    firsts = [1000 * (a.arrivals[0][0] - a.sent) for a in answers if a.arrivals]
    latencies = [1000 * (a.ended - a.sent) for a in answers]
    gaps = [1000 * gap for a in answers for gap in a.gaps]
    requests_per_s = len(answers) / seconds
    found = {
        "requests_per_s": requests_per_s,
        "tokens_per_s": sum(a.tokens for a in answers) / seconds,
        "first_p50": percentile(firsts, 0.5),
        "first_p99": percentile(firsts, 0.99),
        "latency_p50": percentile(latencies, 0.5),
        "gap_p99": percentile(gaps, 0.99),
    }
    found = {name: round(value, 3) for name, value in found.items()}
    return found | cpu_figures(requests_per_s, **cpu_ms)


def cpu_figures(requests_per_s: float, **cpu_ms: float) -> dict[str, float]:
    """Return the CPU times of processes as figures: of the side (``own``), of others by name.

    They are in milliseconds per request, and in percent of all cores of the machine.
    """
    cores = len(os.sched_getaffinity(0))
    times = {f"{name}_cpu": round(ms, 3) for name, ms in cpu_ms.items()}
    shares = {f"{name}_share": ms * requests_per_s / 10 / cores for name, ms in cpu_ms.items()}
    return times | {name: round(share, 3) for name, share in shares.items()}


def main() -> int:
    base, arguments = sys.argv[1:]
    parsed = json.loads(arguments)
    load = Load(**parsed["load"])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        answers = asyncio.run(_send_here(base, parsed["models"], load, parsed["seed"]))
    except Lost as lost:
        print(lost)
        return 1
    sys.stdout.write(ANSWERS.dump_json(answers).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
