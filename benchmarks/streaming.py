"""Measures whether a stream keeps up with a paced engine on a slow link.

    python benchmarks/streaming.py [--rounds 3] [--json FILE]

It measures the raw path with the default chunk settings, through the SDK's real loop, which awaits
each stream POST before it requests the next yield, on a link with delayed POSTs. The worker is this
file, run in a child process with an engine that produces tokens by the clock. The exit status is 1
if a goal is missed. Needs Linux: both processes read the same monotonic clock.

Columns, as medians of the rounds in milliseconds: the engine's time from its first token to its
last; the stream's time from that first token to the end of the last stream POST, and the longest
one; the limit, which is 1.05 times the engine's time plus two POSTs; the time of the first token to
the platform; the number of POSTs.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, cast

import bench
import uvloop
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

import handler
from emulator import Emulator, Options, Status, faults_that_delay_posts
from proof.measure.processes import Lost, next_line, print_line, run_process
from worker.engine import Delta, Engine, Engines, Model
from worker.engine.run.requests.due_outputs import ReaderWaker, make_collector
from worker.job import RawJob
from worker.settings import Settings

FIRST_TOKEN_GOAL_S = 0.020
# Time limits of the worker's startup and of each round: three rounds end within 150 s.
START_S = 30.0
ROUND_S = 40.0


@dataclass(frozen=True)
class Case:
    """A link and a stream: one row of the table."""

    post_delay_s: float
    pace_s: float  # between two tokens
    tokens: int
    posts_goal: float = 1.0  # POSTs per token, at most

    def payload(self) -> dict[str, Any]:
        prompt = json.dumps({"tokens": self.tokens, "pace_s": self.pace_s})
        return {"input": {"prompt": prompt, "stream": True}}


CASES = (
    *(Case(delay, 0.005, 200) for delay in (0, 0.01, 0.05, 0.1)),
    Case(0.05, 0.020, 100, posts_goal=1 / 3),
    *(Case(delay, 0.050, 60) for delay in (0, 0.01, 0.05, 0.1)),
)


@dataclass(frozen=True)
class Timing:
    """The figures of one stream, or the medians of several."""

    engine_s: float
    stream_s: float
    first_s: float
    posts: float

    @staticmethod
    def median(rounds: list["Timing"]) -> "Timing":
        return Timing(*map(statistics.median, zip(*map(astuple, rounds), strict=True)))

    def bound_s(self, case: Case) -> float:
        return 1.05 * self.engine_s + 2 * case.post_delay_s

    def missed_goals(self, case: Case) -> list[str]:
        """Return the names of the missed goals."""
        met = {
            "stream": self.stream_s <= self.bound_s(case),
            "first token": self.first_s <= FIRST_TOKEN_GOAL_S,
            "POSTs": self.posts <= case.posts_goal * case.tokens,
        }
        return [goal for goal, is_met in met.items() if not is_met]


def parse_prompt(job: RawJob) -> tuple[int, float]:
    """Return the number of tokens and their pace in seconds from a prompt of Case.payload."""
    if not isinstance(job.prompt, str) or not job.prompt.startswith("{"):
        return 1, 0.0  # the worker's fitness check
    values = json.loads(job.prompt)
    return values["tokens"], values["pace_s"]


class PacedEngine:
    """The part of an engine that the raw path uses; token k comes at start + k * pace.

    The times are absolute, so delays do not add up. The tokens are read when they are due, as those
    of vLLM. The engine prints the times (time.monotonic) of the first and the last token of each
    request.
    """

    slots = 256
    is_dead = is_suspended = False

    def __init__(self) -> None:
        # Like the real engine: uvloop in a separate thread.
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.model = Model(("paced",), 1, "none", frozenset({"generate"}))
        self._waker = ReaderWaker()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def wait_until_resumed(self) -> None:
        """Return immediately: this engine is never suspended."""

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        outputs = make_collector(RequestOutputKind.DELTA, request_id, waker=self._waker)
        computing = asyncio.create_task(self._compute(job, outputs))
        finished = False
        while not finished:
            output = outputs.get_nowait() or await outputs.get()
            finished = output.finished
            (choice,) = output.outputs
            tokens, reason = len(choice.token_ids), choice.finish_reason
            yield Delta(0, choice.text, tokens, prompt_tokens=1, finish_reason=reason)
        first, last = await computing
        print_line("paced", request_id, first, last)

    async def _compute(self, job: RawJob, outputs: Any) -> tuple[float, float]:
        """Add the tokens of a request; return the times of the first and the last one."""
        tokens, pace_s = parse_prompt(job)
        first = last = time.monotonic()
        for number in range(tokens):
            if number:
                await asyncio.sleep(first + number * pace_s - time.monotonic())
                last = time.monotonic()
            is_last = number == tokens - 1
            reason = "stop" if is_last else None
            choice = CompletionOutput(0, f" {number}", [number], None, None, finish_reason=reason)
            outputs.put(RequestOutput("request", None, None, None, [choice], finished=is_last))
        return first, last


def run_worker() -> None:
    # Not from the environment, so that this shell's settings have no effect.
    settings = Settings(model_name="paced")
    settings.export_library_variables()
    handler.run_sdk(Engines(cast(Engine, PacedEngine())), settings)


async def measure_stream(emulator: Emulator, worker: Process, case: Case) -> Timing:
    """Measure one stream.

    Raises:
        Lost: If tokens are missing, or the job fails.
    """
    emulator.faults.clear()
    for fault in faults_that_delay_posts(case.post_delay_s):
        emulator.faults.add(fault)
    job = emulator.queue.submit(case.payload())
    _, _, *times = await next_line(worker, f"paced {job.id} ")
    first, last = map(float, times)
    await job.wait_for_end()
    # The SDK posts the end right after the last stream POST, so this is slightly later than the end
    # of that POST as seen by the worker.
    ended = job.ended_at
    arrived = sum(len(chunk.output["choices"][0]["tokens"]) for chunk in job.chunks)
    if ended is None or job.status is not Status.COMPLETED or arrived != case.tokens:
        raise Lost(f"a job ended {job.status}, with {arrived} of {case.tokens} tokens")
    return Timing(last - first, ended - first, job.chunks[0].arrived_at - first, len(job.chunks))


HEADINGS = (
    f"{'POST':>5} {'pace':>5} {'tokens':>6} | {'engine':>7} {'stream':>7} {'longest':>7} "
    f"{'bound':>7} {'holds':>5} | {'first':>6} | {'POSTs':>5} {'/token':>6}"
)


def format_row(case: Case, rounds: list[Timing]) -> str:
    """Return the row of a case."""
    median = Timing.median(rounds)
    longest_s = max(timing.stream_s for timing in rounds)
    bound_s = median.bound_s(case)
    return (
        f"{1000 * case.post_delay_s:5.0f} {1000 * case.pace_s:5.0f} {case.tokens:6} | "
        f"{1000 * median.engine_s:7.1f} {1000 * median.stream_s:7.1f} {1000 * longest_s:7.1f} "
        f"{1000 * bound_s:7.1f} {'yes' if median.stream_s <= bound_s else 'NO':>5} | "
        f"{1000 * median.first_s:6.1f} | {median.posts:5.0f} {median.posts / case.tokens:6.2f}"
    )


async def main(rounds: int, json_file: Path | None) -> bool:
    """Measure and print all cases; return whether every goal is met."""
    print(f"{bench.machine()}; medians of {rounds}, ms")
    print(HEADINGS, flush=True)
    missed, results = [], []
    command = (sys.executable, "-u", __file__, "--worker")
    async with (
        asyncio.timeout(START_S + rounds * ROUND_S),
        Emulator(Options()) as emulator,
        run_process(command, emulator.worker_environ()) as worker,
    ):
        # The first stream is not measured.
        await measure_stream(emulator, worker, Case(0, 0.001, 20))
        # Full garbage collections of this process, of about 30 ms, would be attributed to the
        # worker.
        gc.freeze()
        for case in CASES:
            timings = [await measure_stream(emulator, worker, case) for _ in range(rounds)]
            print(format_row(case, timings), flush=True)
            results.append({**asdict(case), "rounds": [asdict(timing) for timing in timings]})
            link = f"{1000 * case.post_delay_s:.0f} ms POSTs, {1000 * case.pace_s:.0f} ms pace"
            missed += [f"{goal} ({link})" for goal in Timing.median(timings).missed_goals(case)]
    bench.write_json(json_file, results)
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return not missed


if __name__ == "__main__":
    parser = bench.options(__doc__, writes_json=True)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.worker:
            run_worker()
        elif not asyncio.run(main(args.rounds, args.json)):
            sys.exit(1)
    except TimeoutError:
        sys.exit("lost: a stream did not end in time")
    except Lost as lost:
        sys.exit(f"lost: {lost}")
