"""Runs many jobs through one worker, to detect resources that grow."""

import asyncio
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import psutil

from emulator import Options
from loop_parts.endpoint import Endpoint, start_endpoint, verdict

BLOCK = 1_000  # jobs
IN_FLIGHT = 32
GOAL = 1.05  # relative to the first block
# Seconds. The emulator runs in this process, so its stored jobs must not grow, either.
RETENTION_S = 1.0


@dataclass(frozen=True)
class Block:
    """The cost of a thousand jobs, and the resources of the worker's process after them."""

    seconds: float
    cpu_s: float  # of the worker's process, without the engine's core
    memory_mb: float  # resident
    open_files: float


async def measure(args: Namespace) -> dict[str, Any]:
    """Print a row for each block of jobs, and the ratios of the last to the first."""
    options = Options(run_retention_s=RETENTION_S)
    environ = {"MODEL_NAME": str(args.model)}
    async with start_endpoint(environ, options=options) as endpoint:
        print("      jobs  seconds  CPU s  memory MB  open files")
        blocks = []
        for number in range(1, args.jobs // BLOCK + 1):
            block = await run_block(endpoint)
            blocks.append(block)
            print(
                f"  {number * BLOCK:8,} {block.seconds:8.2f} {block.cpu_s:6.2f} "
                f"{block.memory_mb:10.1f} {block.open_files:11.0f}",
                flush=True,
            )
    ratios = {
        field.name: getattr(blocks[-1], field.name) / getattr(blocks[0], field.name)
        for field in fields(Block)
    }
    for name, ratio in ratios.items():
        print(f"  {name:10} last / first: {verdict(ratio, GOAL)}")
    return {"blocks": [asdict(block) for block in blocks], "ratios": ratios}


async def run_block(endpoint: Endpoint) -> Block:
    process = psutil.Process(endpoint.processes[0].pid)
    waiting = iter(range(BLOCK))

    async def call(numbers: Iterator[int]) -> None:
        for number in numbers:
            await endpoint.answer(f"Job {number}", 1 + number % 4)

    start, cpu_start_s = time.monotonic(), cpu_s(process)
    await asyncio.gather(*(call(waiting) for _ in range(IN_FLIGHT)))
    seconds = time.monotonic() - start
    return Block(
        seconds,
        cpu_s(process) - cpu_start_s,
        process.memory_info().rss / 2**20,
        process.num_fds(),
    )


def cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)
