"""Starts workers on damaged models, each with a waiting job, and checks how the job ends.

A model that no worker could load must fail the job for good, with the setting to change. A core
that is killed from outside during a start must leave the job to another worker.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from support.effort import run_concurrently
from support.models.damaged import DAMAGES, copy_damaged
from support.models.minilm import MODEL as EMBEDDER
from support.processes.background import start_command
from support.processes.commands import DEMO, HOME, SCRIPT

from emulator import Emulator, Options
from fuzz.attacks import print_line

JOB = {"messages": [{"role": "user", "content": "Hi"}], "sampling_params": {"max_tokens": 2}}
POLL_S = 0.1
# Settings that contradict the demo model's files.
WRONG_SETTINGS = {
    "LOAD_FORMAT": ("pt", "npcache", "mistral", "sharded_state"),
    "HF_OVERRIDES": (
        '{"vocab_size": 100}',
        '{"intermediate_size": 999}',
        '{"hidden_size": 256}',
        '{"num_hidden_layers": 9}',
        '{"num_attention_heads": 3}',
    ),
}
DAMAGED, DAMAGED_EMBEDDER, KILLED = "MODEL_NAME", "EMBEDDING_MODEL_NAME", "killed core"
# Kinds of cases, with their weights.
KINDS = {DAMAGED: 60, DAMAGED_EMBEDDER: 15, "LOAD_FORMAT": 8, "HF_OVERRIDES": 9, KILLED: 8}


@dataclass(frozen=True)
class Case:
    """A start with one fault; ``kind`` is the setting at fault, or ``KILLED``."""

    number: int
    kind: str
    damage: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    # Seconds from the appearance of the core until it is killed.
    killed_after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} {self.damage or self.settings or ''}".rstrip()


def draw_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield cases; the same seed yields the same ones."""
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.choices([*KINDS], [*KINDS.values()])[0]
        if kind in WRONG_SETTINGS:
            yield Case(number, kind, settings={kind: rng.choice(WRONG_SETTINGS[kind])})
        elif kind == KILLED:
            yield Case(number, kind, killed_after_s=rng.uniform(0, 2))
        else:
            yield Case(number, kind, damage=rng.choice([*DAMAGES]))


async def _run_job(environ: dict[str, str], log: Path, case: Case) -> dict[str, Any]:
    """Start a worker for which a job is waiting; return the job's report after its end."""
    async with (
        Emulator(Options(long_poll_s=1)) as emulator,
        aiohttp.ClientSession(f"{emulator.url}/") as session,
    ):
        async with session.post("run", json={"input": JOB}) as answer:
            job_id = (await answer.json())["id"]
        environ = {**HOME, **environ, **emulator.worker_environ()}
        with start_command([SCRIPT], environ, log) as worker:
            is_killed = case.kind != KILLED
            while True:
                has_exited = worker.process.poll() is not None
                async with session.get(f"status/{job_id}") as answer:
                    report: dict[str, Any] = await answer.json()
                if has_exited or report["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
                    return report
                if not is_killed and (pids := worker.core_pids()):
                    await asyncio.sleep(case.killed_after_s)
                    with suppress(ProcessLookupError):
                        os.kill(pids[0], signal.SIGKILL)
                    is_killed = True
                await asyncio.sleep(POLL_S)


def try_start(case: Case, seed: int) -> tuple[str, str]:
    """Return how the job of a case ended, and the problem with this, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {"MODEL_NAME": str(DEMO), **case.settings}
        if case.damage:
            source = EMBEDDER if case.kind == DAMAGED_EMBEDDER else DEMO
            damaged = copy_damaged(source, Path(folder, "model"), case.damage, seed + case.number)
            environ[case.kind] = str(damaged)
        log = Path(folder, "log")
        report = asyncio.run(_run_job(environ, log, case))
        return _judge(case, report, folder, log.read_text(errors="replace"))


def _judge(case: Case, report: dict[str, Any], folder: str, log: str) -> tuple[str, str]:
    last_line = (log.strip().splitlines() or [""])[-1][:400]
    if report["status"] == "COMPLETED":
        return "served", ""
    if report["status"] != "FAILED":
        return "left", "" if case.kind == KILLED else f"the job waits: {last_line}"
    error = json.loads(report["error"])["error"]
    message = str(error["message"])
    if case.kind == KILLED:
        return "failed", "" if error["retryable"] else f"failed for good: {message}"
    is_named = case.kind in message and (error["code"], error["retryable"]) == (503, False)
    if not is_named or folder in message:
        return "failed", f"{error['code']} {error['retryable']} {message}"
    return f"answered with {case.kind}", ""


def run(args: Namespace) -> int:
    """Try the requested number of starts; return how many of them ended in a wrong way."""
    cases = {str(case): case for case in draw_cases(args.models, args.seed)}
    ends, wrong = Counter[str](), 0
    with run_concurrently(
        {name: partial(try_start, case, args.seed) for name, case in cases.items()}
    ) as result_of:
        for name in cases:
            end, problem = result_of(name)
            ends[end] += 1
            if problem:
                wrong += 1
                print_line(f"{name}\n    {problem}")
    counts = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    print_line(f"\nmodels: {len(cases)} starts: {counts}; {wrong} ended wrongly")
    return wrong
