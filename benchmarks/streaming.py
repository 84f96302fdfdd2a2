"""Measures how a paced stream fares on a slow link: it must keep up with the engine.

    python benchmarks/streaming.py [--rounds 3]

Through the SDK's real loop, which awaits each stream POST before it asks for the next yield, and a
link on which each POST takes its time: the raw path, streamed, with the default chunk settings.
The worker runs in a child that is this file again, around an engine that produces tokens by the
clock. Exits with 1 if a goal is missed. Needs Linux: both processes read one monotonic clock.

Columns, medians of the rounds in milliseconds: the engine's time from its first token to its last;
the stream's from that same first token to the end of the last stream POST, and the longest round's;
the most it may be, 1.05 times the engine's and two POSTs; how long the first token took to reach
the platform; the POSTs.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvloop

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import handler  # noqa: E402 - found by the line above
from emulator import Emulator, Job, Options, Status, slow_link  # noqa: E402 - likewise
from worker.engine import Delta, Engine, Engines, Model  # noqa: E402 - likewise
from worker.job import RawJob  # noqa: E402 - likewise
from worker.settings import Settings  # noqa: E402 - likewise

FIRST_TOKEN_GOAL_S = 0.020
# What the worker's start may take, and each round: a whole run of three ends within 150 s.
START_S = 30.0
ROUND_S = 40.0


class Lost(Exception):
    """A job did not end as it should, or the worker did end."""


@dataclass(frozen=True)
class Row:
    """One case: how long a POST takes, and how the engine paces how many tokens."""

    post_delay_s: float
    pace_s: float
    tokens: int
    posts_goal: float = 1.0  # POSTs for each token, at most

    def payload(self) -> dict[str, Any]:
        prompt = json.dumps({"tokens": self.tokens, "pace_s": self.pace_s})
        return {"input": {"prompt": prompt, "stream": True}}


ROWS = (
    *(Row(delay, 0.005, 200) for delay in (0, 0.01, 0.05, 0.1)),
    Row(0.05, 0.020, 100, posts_goal=1 / 3),
    *(Row(delay, 0.050, 60) for delay in (0, 0.01, 0.05, 0.1)),
)


@dataclass(frozen=True)
class Measured:
    """One stream's figures, or the medians of several."""

    engine_s: float
    stream_s: float
    first_s: float
    posts: float

    @staticmethod
    def median(rounds: list["Measured"]) -> "Measured":
        return Measured(
            *(
                statistics.median(getattr(one, name) for one in rounds)
                for name in ("engine_s", "stream_s", "first_s", "posts")
            )
        )

    def bound_s(self, row: Row) -> float:
        return 1.05 * self.engine_s + 2 * row.post_delay_s

    def missed(self, row: Row) -> list[str]:
        """Name the goals that these figures miss."""
        held = {
            "stream": self.stream_s <= self.bound_s(row),
            "first token": self.first_s <= FIRST_TOKEN_GOAL_S,
            "POSTs": self.posts <= row.posts_goal * row.tokens,
        }
        return [goal for goal, holds in held.items() if not holds]


def paces(job: RawJob) -> tuple[int, float]:
    """Read how many tokens a job wants, and at what pace: its prompt, which Row.payload wrote."""
    if not isinstance(job.prompt, str) or not job.prompt.startswith("{"):
        return 1, 0.0  # the worker's own fitness check
    wanted = json.loads(job.prompt)
    return wanted["tokens"], wanted["pace_s"]


class PacedEngine:
    """Does what the raw path asks of an engine: token k comes at start + k x pace, says nothing.

    By absolute times, so that lateness does not add up. Prints when (time.monotonic) a request's
    first and last tokens came.
    """

    def __init__(self) -> None:
        # Of the real engine's kind, and in a thread of its own as well.
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.model = Model(("paced",), 1, "none", frozenset({"generate"}))
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        tokens, pace_s = paces(job)
        begun = last = time.monotonic()
        for place in range(tokens):
            if place:
                await asyncio.sleep(begun + place * pace_s - time.monotonic())
                last = time.monotonic()
            reason = "stop" if place == tokens - 1 else None
            yield Delta(0, f" {place}", 1, prompt_tokens=1, finish_reason=reason)
        # One write, on a line of its own whatever the SDK is printing.
        os.write(1, f"\npaced {request_id} {begun} {last}\n".encode())


def probe() -> None:
    """Be the worker."""
    # Not from the environment: what is measured does not depend on this shell.
    settings = Settings(model_name="paced")
    settings.export()
    handler.serve(Engines(cast(Engine, PacedEngine())), settings)


class Bench:
    """A worker at an emulator, and streams through both."""

    def __init__(self, emulator: Emulator, output: asyncio.StreamReader) -> None:
        self._emulator = emulator
        self._output = output

    async def warm_up(self) -> None:
        """Wait until the worker answers: its start is not measured, nor is its first stream."""
        await self.stream(Row(0, 0.001, 20))

    async def stream(self, row: Row) -> Measured:
        self._emulator.faults.clear()
        for fault in slow_link(row.post_delay_s):
            self._emulator.faults.add(fault)
        job = self._emulator.queue.submit(row.payload())
        first, last = await self._paced(job)
        await job.wait_ended()
        # The SDK posts the end as soon as the last stream POST has ended, so that this is when that
        # had, as the worker sees it, and a little more.
        ended = job.ended_at
        arrived = sum(len(chunk.output["choices"][0]["tokens"]) for chunk in job.chunks)
        if ended is None or job.status is not Status.COMPLETED or arrived != row.tokens:
            raise Lost(f"a job ended {job.status}, with {arrived} of {row.tokens} tokens")
        return Measured(last - first, ended - first, job.chunks[0].at - first, len(job.chunks))

    async def _paced(self, job: Job) -> tuple[float, float]:
        """When the engine produced the job's first token and its last, as the probe tells it."""
        async for line in self._output:
            if line.startswith(f"paced {job.id} ".encode()):
                first, last = line.split()[2:]
                return float(first), float(last)
        raise Lost("the worker ended")


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with Emulator(Options()) as emulator:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", __file__, "--probe"),
            env={**os.environ, **emulator.worker_environ()},
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield Bench(emulator, process.stdout)
        finally:
            # The whole session: the SDK's ping process outlives a worker that is killed.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()


HEADINGS = (
    f"{'POST':>5} {'pace':>5} {'tokens':>6} | {'engine':>7} {'stream':>7} {'longest':>7} "
    f"{'bound':>7} {'holds':>5} | {'first':>6} | {'POSTs':>5} {'/token':>6}"
)


def figures(row: Row, rounds: list[Measured]) -> str:
    median = Measured.median(rounds)
    longest_s = max(one.stream_s for one in rounds)
    bound_s = median.bound_s(row)
    return (
        f"{1000 * row.post_delay_s:5.0f} {1000 * row.pace_s:5.0f} {row.tokens:6} | "
        f"{1000 * median.engine_s:7.1f} {1000 * median.stream_s:7.1f} {1000 * longest_s:7.1f} "
        f"{1000 * bound_s:7.1f} {'yes' if median.stream_s <= bound_s else 'NO':>5} | "
        f"{1000 * median.first_s:6.1f} | {median.posts:5.0f} {median.posts / row.tokens:6.2f}"
    )


async def main(rounds: int) -> bool:
    """Measure and print all rows; return whether every goal is met."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; medians of {rounds}, ms")
    print(HEADINGS, flush=True)
    missed = []
    async with asyncio.timeout(START_S + rounds * ROUND_S), bench() as worker:
        await worker.warm_up()
        # This process's own full collections, of some 30 ms each, would count as the worker's.
        gc.freeze()
        for row in ROWS:
            measured = [await worker.stream(row) for _ in range(rounds)]
            print(figures(row, measured), flush=True)
            missed += [
                f"{goal} ({1000 * row.post_delay_s:.0f} ms POSTs, {1000 * row.pace_s:.0f} ms pace)"
                for goal in Measured.median(measured).missed(row)
            ]
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return not missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.probe:
            probe()
        elif not asyncio.run(main(args.rounds)):
            sys.exit(1)
    except TimeoutError:
        sys.exit("lost: a stream did not end in time")
    except Lost as lost:
        sys.exit(f"lost: {lost}")
