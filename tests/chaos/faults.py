"""Faults in every call, and an outage: each job is answered once, wholly, or fails as retryable."""

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
from chaos.watch import lasting_endpoint
from chaos.workload import Ending, counts, details, ending_of, job_input, long_job, runs, text_of
from emulator import Action, Call, Fault

CLIENTS = 128  # jobs at once, and slots
# All prompts in one step: vLLM's engine for CPUs dies of a prompt that has a seed and is computed
# in two.
BATCHED_TOKENS = "16384"
MOST_ATTEMPTS = 10
LONG_STREAMS = 4  # computed during the outage, beside the clients' jobs
# One pair in so many is long, in tokens.
LONG_EVERY, LONG_TOKENS = 50, 1000
# Beyond the outage: a job whose take was lost ends there, and is sent again.
EXECUTION_EXTRA_S = 120.0
GROWTH_GOAL = 1.2  # of resident memory during the outage
WORDS = "a small green worker counts bright tokens near the old river at night".split()


class Question:
    """What a streamed job and its unstreamed twin ask."""

    def __init__(self, seed: int, number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        self.number = number
        self._text = " ".join(rng.choices(WORDS, k=8))
        self._tokens = rng.randint(8, 80) if number % LONG_EVERY else LONG_TOKENS
        self._raw = rng.random() < 0.5

    def job_input(self, *, stream: bool) -> dict[str, Any]:
        params = {"seed": self.number, "max_tokens": self._tokens, "ignore_eos": True}
        return job_input(self._text, params, raw=self._raw, stream=stream)


class Run:
    """All questions of a run, asked by clients that send a job again when it failed."""

    def __init__(self, endpoint: EmulatedEndpoint, jobs: int, seed: int, outage_s: float) -> None:
        self.report = Report(f"faults, {jobs} jobs, {outage_s:.0f} s of outage, seed {seed}")
        self.attempts = Counter[str]()
        self.bytes_before = self.bytes_at_end = 0  # of the outage
        self._endpoint = endpoint
        self._questions = [Question(seed, number) for number in range(jobs // 2)]
        self._texts: dict[tuple[int, bool], str] = {}
        self._timed_out: list[str] = []
        self._outage_s = outage_s

    async def ask_all(self) -> None:
        left = [(question, stream) for question in self._questions for stream in (False, True)]
        left.reverse()
        half = len(left) // 2

        async def outage() -> None:
            while len(left) > half:
                await asyncio.sleep(0.05)
            await self._cut_off()

        async def client() -> None:
            while left:
                question, stream = left.pop()
                await self._ask(question, stream=stream)

        await asyncio.gather(outage(), *(client() for _ in range(CLIENTS)))

    async def _ask(self, question: Question, *, stream: bool) -> None:
        """Send a job until it has its whole text."""
        name = f"question {question.number}, {'stream' if stream else 'whole'}"
        for _ in range(MOST_ATTEMPTS):
            job = self._endpoint.submit(question.job_input(stream=stream))
            await job.wait_ended()
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
        self.report.broken.append(f"{name}: lost, {MOST_ATTEMPTS} attempts failed: {job.error}")

    async def _cut_off(self) -> None:
        """Answer with 503 for one half of the outage, and refuse connections for the other."""
        faults = self._endpoint.emulator.faults
        streams = [long_job(random.Random(number), stream=True) for number in range(LONG_STREAMS)]
        streaming = [self._endpoint.submit(stream) for stream in streams]
        await asyncio.gather(*(runs(job, chunks=1) for job in streaming))
        self.bytes_before = self._resident_bytes()
        half_s = self._outage_s / 2
        for call in Call:
            faults.add(Fault(on=call, do=Action.STATUS, status=503, seconds=half_s))
        await asyncio.sleep(half_s)
        await self._endpoint.emulator.refuse(half_s)
        await asyncio.sleep(half_s)
        self.bytes_at_end = self._resident_bytes()
        for job in streaming:
            await job.wait_ended()
            ending = ending_of(job)
            self.attempts[ending] += 1
            self.report.check(
                ending in (Ending.WHOLE, Ending.RETRYABLE, Ending.TIMED_OUT),
                f"a stream of the outage: {ending}: {details(job)}",
            )

    def _resident_bytes(self) -> int:
        """Return the resident memory of the worker, without its engine's core."""
        return int(psutil.Process(self._endpoint.worker.process.pid).memory_info().rss)

    def check_timed_out(self) -> None:
        """Check that jobs have timed out only if the worker never got them: their take was lost."""
        logged = self._endpoint.logged
        for job_id in self._timed_out:
            self.report.check(job_id not in logged, f"{job_id} timed out in the worker's hands")

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
        report.figures.append(f"{lost} lost, {counts(self.attempts)}")
        met = Counter(json.loads(line).get("fault") for line in requests)
        del met[None]
        report.figures.append("faults met: " + counts(met))
        growth = self.bytes_at_end / self.bytes_before
        report.figures.append(f"memory {growth:.3f} x at the end of the outage")
        if growth > GROWTH_GOAL:
            report.missed.append(f"memory: {growth:.2f} x, not {GROWTH_GOAL}")


async def run(args: Namespace) -> Report:
    """Run so many jobs, one half the streamed twins of the other."""
    requests, log = args.logs / "faults-requests.jsonl", args.logs / "faults.log"
    slots = str(CLIENTS + LONG_STREAMS)
    environ = {**WORKER, "MAX_CONCURRENCY": slots, "MAX_NUM_BATCHED_TOKENS": BATCHED_TOKENS}
    limit_s = args.outage + EXECUTION_EXTRA_S
    async with lasting_endpoint(
        environ, log, seed=args.seed, request_log=requests, execution_timeout_s=limit_s
    ) as endpoint:
        for fault in _faults():
            endpoint.emulator.faults.add(fault)
        run_ = Run(endpoint, args.jobs, args.seed, args.outage)
        await run_.ask_all()
    run_.check_timed_out()
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
