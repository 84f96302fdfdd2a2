"""A process that serves two concurrent callers, with and without a batch in the background.

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
from batch_parts import worker as batch_worker
from batch_parts.sides import CHAT
from proof.measure import http_load, processes
from worker.app import Worker
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings

CALLERS = 2
TOKENS = 16
_numbers = count()


async def call(worker: Worker, prompt: str) -> float:
    """Send a chat; return its duration in milliseconds."""
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
        raise processes.Lost(f"a chat was answered {answer}")
    return 1000 * (time.perf_counter() - start)


async def measure_chats(worker: Worker, seconds: float) -> list[float]:
    """Return the sorted durations of all chats of callers without pauses."""
    times: list[float] = []
    prompts = http_load.prompts(1_000)

    async def caller(first_number: int) -> None:
        for number in count(first_number, CALLERS):
            if time.perf_counter() >= end:
                return
            times.append(await call(worker, prompts[number % len(prompts)]))

    end = time.perf_counter() + seconds
    await asyncio.gather(*map(caller, range(CALLERS)))
    return sorted(times)


@contextlib.asynccontextmanager
async def run_batch_in_background(worker: Worker, job: dict[str, Any]) -> AsyncIterator[None]:
    """Run a batch during the block; the next block continues the batch.

    Raises:
        Lost: If the batch ends before the block, because it has too few lines.
    """

    async def run() -> None:
        async for _ in worker.handle(job):
            raise processes.Lost("the batch has ended: use more --lines")

    running = asyncio.create_task(run())
    # Until the batch fills the engine.
    await asyncio.sleep(3)
    yield
    if running.done():
        running.result()
    running.cancel()
    await asyncio.wait({running})
    await asyncio.sleep(2)


async def main(worker: Worker, source: str, seconds: float, rounds: int) -> None:
    await measure_chats(worker, min(seconds, 3))
    bench.print_line("begun")
    for turn in range(rounds):
        for side in ("alone", "beside")[:: 1 if turn % 2 == 0 else -1]:
            background = run_batch_in_background(worker, batch_worker.job(source))
            async with background if side == "beside" else contextlib.nullcontext():
                times = await measure_chats(worker, seconds)
            half, nearly_all = times[len(times) // 2], times[int(len(times) * 0.99)]
            bench.print_line("round", side, len(times), half, nearly_all, times[-1])
    bench.print_line("over")


if __name__ == "__main__":
    os.environ.update(batch_worker.environ(*sys.argv[1:4]))
    with handler.start_engines(gather_settings(environ_with_secrets())) as (engines, settings):
        worker = Worker(engines, settings)
        asyncio.run(main(worker, sys.argv[2], float(sys.argv[4]), int(sys.argv[5])))
