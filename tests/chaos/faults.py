"""Faults in every call, and an outage: each job is answered once, wholly, or fails as retryable."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report
from chaos.watch import lasting_endpoint
from chaos.workload import Ending, counts, details, ending_of, job_input, text_of
from emulator import Action, Call, Fault, Job, Status

CLIENTS = 128  # jobs at once, and slots
# All prompts in one step: vLLM's engine for CPUs dies of a prompt that has a seed and is computed
# in two.
BATCHED_TOKENS = "16384"
MOST_ATTEMPTS = 10
# One pair in so many is long, in tokens.
LONG_EVERY, LONG_TOKENS = 50, 1000
# Beyond the outage: a job whose take was lost ends there, and is sent again.
EXECUTION_EXTRA_S = 120.0
GROWTH_GOAL = 1.2  # of resident memory during the outage
WORDS = "a small green worker counts bright tokens near the old river at night".split()


@dataclass(frozen=True)
class Question:
    """What a streamed job and its unstreamed twin ask."""

    number: int
    text: str
    tokens: int
    raw: bool

    @staticmethod
    def draw(seed: int, number: int) -> "Question":
        rng = random.Random(f"{seed}/{number}")
        long = number % LONG_EVERY == 0
        text = " ".join(rng.choices(WORDS, k=8))
        return Question(
            number, text, LONG_TOKENS if long else rng.randint(8, 80), raw=rng.random() < 0.5
        )

    def job_input(self, *, stream: bool) -> dict[str, Any]:
        params = {"seed": self.number, "max_tokens": self.tokens, "ignore_eos": True}
        return job_input(self.text, params, raw=self.raw, stream=stream)


@dataclass
class Outage:
    """When it was (time.monotonic), and what it did to the worker."""

    began: float = 0.0
    ended: float = 0.0
    bytes_before: int = 0
    bytes_at_end: int = 0
    held: list[Job] = field(default_factory=list)  # jobs that it met

    @property
    def last_done_s(self) -> float:
        """How long after it the last of its jobs was answered; none is if its take was lost."""
        answered = [job for job in self.held if job.status is not Status.TIMED_OUT]
        return max((job.ended_at or 0.0 for job in answered), default=self.ended) - self.ended


class Run:
    """All questions of a run, asked by clients that send a job again when it failed."""

    def __init__(self, endpoint: EmulatedEndpoint, jobs: int, seed: int, outage_s: float) -> None:
        self.report = Report(f"faults, {jobs} jobs, {outage_s:.0f} s of outage, seed {seed}")
        self.attempts = Counter[str]()
        self.outage = Outage()
        self._endpoint = endpoint
        self._questions = [Question.draw(seed, number) for number in range(jobs // 2)]
        self._texts: dict[tuple[int, bool], str] = {}
        self._open: set[Job] = set()
        self._outage_s = outage_s

    async def ask_all(self) -> None:
        left = [(question, stream) for question in self._questions for stream in (False, True)]
        left.reverse()
        outage = asyncio.create_task(self._cut_off(len(left) // 2))

        async def client() -> None:
            while left:
                question, stream = left.pop()
                await self._ask(question, stream=stream)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        await outage

    async def _ask(self, question: Question, *, stream: bool) -> None:
        """Send a job until it has its whole text."""
        name = f"question {question.number}, {'stream' if stream else 'whole'}"
        for _ in range(MOST_ATTEMPTS):
            job = self._endpoint.submit(question.job_input(stream=stream))
            self._open.add(job)
            await job.wait_ended()
            self._open.discard(job)
            ending = ending_of(job)
            self.attempts[ending] += 1
            if ending is Ending.WHOLE:
                self._texts[question.number, stream] = text_of(job.output)
                return
            if ending not in (Ending.RETRYABLE, Ending.TIMED_OUT):
                self.report.broken.append(f"{name}: {ending}: {details(job)}")
                return
        self.report.broken.append(f"{name}: lost, {MOST_ATTEMPTS} attempts failed: {job.error}")

    async def _cut_off(self, ended: int) -> None:
        """Wait until so many jobs have ended; then answer with 503, and then refuse connections."""
        while len(self._texts) < ended:
            await asyncio.sleep(0.05)
        outage, faults = self.outage, self._endpoint.emulator.faults
        outage.bytes_before = self._resident_bytes()
        outage.held = list(self._open)
        outage.began = time.monotonic()
        half_s = self._outage_s / 2
        for call in Call:
            faults.add(Fault(on=call, do=Action.STATUS, status=503, seconds=half_s))
        await asyncio.sleep(half_s)
        await self._endpoint.emulator.refuse(half_s)
        await asyncio.sleep(half_s)
        outage.ended = time.monotonic()
        outage.bytes_at_end = self._resident_bytes()

    def _resident_bytes(self) -> int:
        """Return the resident memory of the worker, without its engine's core."""
        rss: int = psutil.Process(self._endpoint.worker.process.pid).memory_info().rss
        return rss

    def compare_twins(self) -> None:
        for question in self._questions:
            whole, streamed = (
                self._texts.get((question.number, stream)) for stream in (False, True)
            )
            self.report.check(
                holds=whole == streamed or whole is None or streamed is None,
                otherwise=f"question {question.number}: {streamed!r} streamed, {whole!r} whole",
            )

    def add_figures(self, requests: Iterable[str]) -> None:
        report, outage = self.report, self.outage
        lost = 2 * len(self._questions) - len(self._texts)
        report.figures.append(f"{lost} lost, {counts(self.attempts)}")
        met = Counter(json.loads(line).get("fault") for line in requests)
        del met[None]
        report.figures.append("faults met: " + counts(met))
        growth = outage.bytes_at_end / outage.bytes_before
        report.figures.append(
            f"memory at the end of the outage {growth:.3f} x of {outage.bytes_before / 1e6:.0f} MB"
        )
        if growth > GROWTH_GOAL:
            report.missed.append(f"memory: {growth:.2f} x, not {GROWTH_GOAL}")
        report.figures.append(
            f"the last of its jobs was answered {outage.last_done_s:.1f} s after it"
        )


async def run(jobs: int, seed: int, outage_s: float, folder: Path) -> Report:
    """Run so many jobs, one half the streamed twins of the other."""
    requests = folder / "faults-requests.jsonl"
    environ = {**WORKER, "MAX_CONCURRENCY": str(CLIENTS), "MAX_NUM_BATCHED_TOKENS": BATCHED_TOKENS}
    async with lasting_endpoint(
        environ,
        folder / "faults.log",
        seed=seed,
        request_log=requests,
        execution_timeout_s=outage_s + EXECUTION_EXTRA_S,
    ) as endpoint:
        for fault in _faults():
            endpoint.emulator.faults.add(fault)
        run_ = Run(endpoint, jobs, seed, outage_s)
        await run_.ask_all()
    run_.compare_twins()
    run_.add_figures(requests.read_text().splitlines())
    return run_.report


def _faults() -> list[Fault]:
    """Return the faults of the whole run: in shares of a call, or in a number of them."""
    faults = [Fault(on=Call.TAKE, do=Action.DUPLICATE, share=0.05)]
    for call in Call:
        faults += [
            Fault(on=call, do=Action.STATUS, status=500, share=0.02),
            Fault(on=call, do=Action.STATUS, status=429, share=0.01),
            Fault(on=call, do=Action.RESET, share=0.01),
        ]
    for call in (Call.STREAM, Call.DONE):
        faults += [
            Fault(on=call, do=Action.LOSE, share=0.01),
            Fault(on=call, do=Action.HANG, share=0.005, calls=10),
        ]
    # Each of them costs a job its execution time-out, and a take the worker's own time-out.
    faults.append(Fault(on=Call.TAKE, do=Action.LOSE, share=0.1, calls=3))
    faults.append(Fault(on=Call.TAKE, do=Action.HANG, share=0.01, calls=1))
    return faults
