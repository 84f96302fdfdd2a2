"""Faults in every call and an outage; each job completes once or fails as retryable."""

import asyncio
import json
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from typing import Any

import psutil
from support.processes.commands import WORKER
from support.processes.emulated_endpoint import EmulatedEndpoint

from chaos.report import Report
from chaos.workload import (
    Ending,
    details,
    ending_of,
    format_counts,
    job_input,
    long_job,
    start_watched_endpoint,
    text_of,
    wait_until_running,
)
from emulator import Action, Call, Fault

CLIENTS = 128  # concurrent jobs, and slots
# Large enough to compute all prompts in one step: vLLM's CPU engine dies of a prompt with a seed
# that is computed in two steps.
BATCHED_TOKENS = "16384"
MAX_ATTEMPTS = 10
LONG_STREAMS = 4  # computed during the outage, in addition to the clients' jobs
# Every 50th pair of jobs generates 1,000 tokens.
LONG_EVERY, LONG_TOKENS = 50, 1000
# Seconds added to the outage for the execution timeout. A job that was lost on its way to the
# worker times out and is submitted again.
EXECUTION_EXTRA_S = 120.0
GROWTH_GOAL = 1.2  # resident memory at the end of the outage, relative to its beginning
WORDS = "a small green worker counts bright tokens near the old river at night".split()


class Question:
    """The question of a streamed job and its non-streamed twin."""

    def __init__(self, seed: int, number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        self.number = number
        self._text = " ".join(rng.choices(WORDS, k=8))
        self._tokens = rng.randint(8, 80) if number % LONG_EVERY else LONG_TOKENS
        self._raw = rng.random() < 0.5

    def job_input(self, *, stream: bool) -> dict[str, Any]:
        params = {"seed": self.number, "max_tokens": self._tokens, "ignore_eos": True}
        job = job_input(self._text, params, raw=self._raw, stream=stream)
        # A broken post fails a stream, so the posts of a long one must not grow with its duration.
        return job | {"max_batch_delay_ms": 0} if self._tokens == LONG_TOKENS else job


class FaultsRun:
    """All questions of a run, sent by clients that submit a job again when it fails."""

    def __init__(self, endpoint: EmulatedEndpoint, jobs: int, seed: int, outage_s: float) -> None:
        self.report = Report(f"faults, {jobs} jobs, {outage_s:.0f} s of outage, seed {seed}")
        self.attempts = Counter[str]()
        self.bytes_before = self.bytes_at_end = 0  # of resident memory around the outage
        self._endpoint = endpoint
        self._questions = [Question(seed, number) for number in range(jobs // 2)]
        self._texts: dict[tuple[int, bool], str] = {}
        self._timed_out: list[str] = []
        self._outage_s = outage_s

    async def ask_all(self) -> None:
        remaining = [(question, stream) for question in self._questions for stream in (False, True)]
        remaining.reverse()
        half = len(remaining) // 2

        async def outage() -> None:
            while len(remaining) > half:
                await asyncio.sleep(0.05)
            await self._run_outage()

        async def client() -> None:
            while remaining:
                question, stream = remaining.pop()
                await self._ask(question, stream=stream)

        await asyncio.gather(outage(), *(client() for _ in range(CLIENTS)))

    async def _ask(self, question: Question, *, stream: bool) -> None:
        """Submit a job until it completes with its whole text."""
        name = f"question {question.number}, {'stream' if stream else 'whole'}"
        for _ in range(MAX_ATTEMPTS):
            job = self._endpoint.submit(question.job_input(stream=stream))
            await job.wait_for_end()
            ending = ending_of(job)
            self.attempts[ending] += 1
            if ending is Ending.WHOLE:
                self._texts[question.number, stream] = text_of(job.output)
                return
            if ending is Ending.TIMED_OUT:
                self._timed_out.append(job.id)
            elif ending is not Ending.RETRYABLE:
                self.report.broken.append(f"{name}: {ending}: {details(job)}")
                return
        self.report.broken.append(f"{name}: lost, {MAX_ATTEMPTS} attempts failed: {job.error}")

    async def _run_outage(self) -> None:
        """Answer with 503 for half of the outage, then refuse connections for the other half."""
        faults = self._endpoint.emulator.faults
        streams = [long_job(random.Random(number), stream=True) for number in range(LONG_STREAMS)]
        jobs = [self._endpoint.submit(stream) for stream in streams]
        await asyncio.gather(*(wait_until_running(job, chunks=1) for job in jobs))
        self.bytes_before = self._resident_bytes()
        half_s = self._outage_s / 2
        for call in Call:
            faults.add(Fault(on=call, do=Action.STATUS, status=503, seconds=half_s))
        await asyncio.sleep(half_s)
        await self._endpoint.emulator.begin_outage(half_s)
        await asyncio.sleep(half_s)
        self.bytes_at_end = self._resident_bytes()
        for job in jobs:
            await job.wait_for_end()
            ending = ending_of(job)
            self.attempts[ending] += 1
            self.report.check(
                ending in (Ending.WHOLE, Ending.RETRYABLE, Ending.TIMED_OUT),
                f"a stream of the outage: {ending}: {details(job)}",
            )

    def _resident_bytes(self) -> int:
        """Return the resident memory of the worker without its engine core."""
        return int(psutil.Process(self._endpoint.worker.process.pid).memory_info().rss)

    def check_timed_out(self) -> None:
        """Check that jobs only timed out if they were lost on their way to the worker."""
        log = self._endpoint.log
        for job_id in self._timed_out:
            self.report.check(job_id not in log, f"{job_id} timed out in the worker's hands")

    def compare_twins(self) -> None:
        for question in self._questions:
            whole, streamed = (
                self._texts.get((question.number, stream)) for stream in (False, True)
            )
            self.report.check(
                whole == streamed or whole is None or streamed is None,
                f"question {question.number}: {streamed!r} streamed, {whole!r} whole",
            )

    def add_figures(self, requests: Iterable[str]) -> None:
        report = self.report
        lost = 2 * len(self._questions) - len(self._texts)
        report.figures.append(f"{lost} lost, {format_counts(self.attempts)}")
        fault_counts = Counter(json.loads(line).get("fault") for line in requests)
        del fault_counts[None]
        report.figures.append("faults met: " + format_counts(fault_counts))
        growth = self.bytes_at_end / self.bytes_before
        report.figures.append(f"memory {growth:.3f} x at the end of the outage")
        if growth > GROWTH_GOAL:
            report.missed.append(f"memory: {growth:.2f} x, not {GROWTH_GOAL}")


async def run(args: Namespace) -> Report:
    """Run the jobs; half of them are streamed twins of the other half."""
    requests, log = args.logs / "faults-requests.jsonl", args.logs / "faults.log"
    slots = str(CLIENTS + LONG_STREAMS)
    environ = {**WORKER, "MAX_CONCURRENCY": slots, "MAX_NUM_BATCHED_TOKENS": BATCHED_TOKENS}
    limit_s = args.outage + EXECUTION_EXTRA_S
    async with start_watched_endpoint(
        environ, log, seed=args.seed, request_log=requests, execution_timeout_s=limit_s
    ) as endpoint:
        for fault in _faults():
            endpoint.emulator.faults.add(fault)
        run_ = FaultsRun(endpoint, args.jobs, args.seed, args.outage)
        await run_.ask_all()
    run_.check_timed_out()
    run_.compare_twins()
    run_.add_figures(requests.read_text().splitlines())
    return run_.report


def _faults() -> list[Fault]:
    """Return the faults of the whole run, as shares or as numbers of calls."""
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
    # Each of these costs a job its execution timeout, and the worker the timeout of its request for
    # jobs.
    faults.append(Fault(on=Call.TAKE, do=Action.LOSE, share=0.1, calls=3))
    faults.append(Fault(on=Call.TAKE, do=Action.HANG, share=0.01, calls=1))
    return faults
