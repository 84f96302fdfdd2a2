"""Measures the start of a worker that compiles, and of the next one that finds the compiled code.

    python benchmarks/cold_start.py [--rounds 3] [--model .models/demo] [--json FILE]

The time is from the start of the process to its first streamed token, with ENFORCE_EAGER=0, which
compiles C++ on a CPU: first on an empty volume, then in a new container on the same volume. Both
have an empty home. `compare.py` compares starts without compilation with those of vLLM's own server
and of the bare engine.
"""

import asyncio
import statistics
import tempfile
from argparse import Namespace
from pathlib import Path

import bench

from proof.measure.processes import Lost
from proof.measure.sides import START_S, Conditions, WorkerSide, worker

ENGINE = {"enforce_eager": False, "max_model_len": 1024}
ENVIRON = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


async def time_starts(model: Path) -> dict[str, float]:
    """Return the seconds of the first start, and of the next one on the same volume."""
    with (
        tempfile.TemporaryDirectory() as volume,
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as next_home,
    ):
        environ = {**ENVIRON, "BASE_PATH": volume}
        async with worker(model, Conditions(ENGINE, {**environ, "HOME": home})) as first:
            async with asyncio.timeout(START_S):
                await wait_for_archives(first)
        async with worker(model, Conditions(ENGINE, {**environ, "HOME": next_home})) as second:
            return {"first": first.first_s, "next": second.first_s}


async def wait_for_archives(side: WorkerSide) -> None:
    """Wait until a worker has logged that it has written both archives to the volume.

    One has the data about model classes, the other one the engine's code.

    Raises:
        Lost: If the worker exits first.
    """
    while sum(": published, " in line for line in side.output.last_lines) < 2:
        if side.output.ended.is_set():
            raise Lost("the worker ended before it published what it compiled")
        await asyncio.sleep(0.1)


async def main(args: Namespace) -> None:
    results = [await time_starts(args.model) for _ in range(args.rounds)]
    seconds = {name: [result[name] for result in results] for name in results[0]}
    first, next_ = map(statistics.median, seconds.values())
    print(f"compiled: first start {first:.1f} s, next {next_:.1f} s: {next_ / first:.2f}")
    bench.write_json(args.json, {"compiled": seconds})


if __name__ == "__main__":
    parser = bench.options(__doc__, writes_json=True)
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    asyncio.run(main(parser.parse_args()))
