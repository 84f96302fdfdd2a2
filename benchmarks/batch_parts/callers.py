"""A process that answers two callers at a time, with and without a batch beside them.

python benchmarks/batch_parts/callers.py MODEL INPUT FOLDER SECONDS ROUNDS
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import bench

import handler
from batch_parts import worker as batches
from batch_parts.sides import CHAT
from worker.app import Worker
from worker.settings.environment import given_environ
from worker.settings.sources import gather

CALLERS = 2
TOKENS = 16
_numbers = count()


async def call(worker: Worker, prompt: str) -> float:
    """Return the milliseconds of a chat."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    job = {"id": f"c{next(_numbers)}", "input": {"openai_route": CHAT, "openai_input": body}}
    start = time.perf_counter()
    (answer,) = [chunk async for chunk in worker.handle(job)]
    if "choices" not in answer:
        raise bench.Lost(f"a chat was answered {answer}")
    return 1000 * (time.perf_counter() - start)


async def called(worker: Worker, seconds: float) -> list[float]:
    """Return the times of all chats of callers who ask again as soon as they are answered."""
    times: list[float] = []
    prompts = bench.prompts(1_000)

    async def caller(first: int) -> None:
        for number in count(first, CALLERS):
            if time.perf_counter() >= end:
                return
            times.append(await call(worker, prompts[number % len(prompts)]))

    end = time.perf_counter() + seconds
    await asyncio.gather(*map(caller, range(CALLERS)))
    return sorted(times)


@contextlib.asynccontextmanager
async def batch_beside(worker: Worker, job: dict[str, Any]) -> AsyncIterator[None]:
    """Run a batch meanwhile; the next time it goes on.

    Raises:
        Lost: it ended too early: it has too few lines.
    """

    async def run() -> None:
        async for _ in worker.handle(job):
            raise bench.Lost("the batch has ended: give it more --lines")

    running = asyncio.create_task(run())
    # Until it has all of the engine.
    await asyncio.sleep(3)
    yield
    if running.done():
        running.result()
    running.cancel()
    await asyncio.wait({running})
    await asyncio.sleep(2)


async def main(worker: Worker, source: str, seconds: float, rounds: int) -> None:
    await called(worker, min(seconds, 3))
    bench.print_line("begun")
    for turn in range(rounds):
        for side in ("alone", "beside")[:: 1 if turn % 2 == 0 else -1]:
            beside = batch_beside(worker, batches.job(source))
            async with beside if side == "beside" else contextlib.nullcontext():
                times = await called(worker, seconds)
            half, nearly_all = times[len(times) // 2], times[int(len(times) * 0.99)]
            bench.print_line("round", side, len(times), half, nearly_all, times[-1])
    bench.print_line("over")


if __name__ == "__main__":
    os.environ.update(batches.environ(*sys.argv[1:4]))
    with handler.started(gather(given_environ())) as (engines, settings):
        served = Worker(engines, settings)
        asyncio.run(main(served, sys.argv[2], float(sys.argv[4]), int(sys.argv[5])))
