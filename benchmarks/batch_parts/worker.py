"""A process that runs a batch in a job of this worker, timed from the job to its end.

    python benchmarks/batch_parts/worker.py MODEL INPUT FOLDER

In the same folder a later process goes on with the batch.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import bench

import handler
from batch_parts import memory
from batch_parts.sides import CHAT, MAX_MODEL_LEN, SLOTS, WARM, WARMUP, write_input
from worker.app import Worker
from worker.settings.environment import given_environ
from worker.settings.sources import gather


def job(source: str) -> dict[str, Any]:
    """Return the job of a batch: the same id is the same batch."""
    name = Path(source).name
    batch = {"input_path": f"inbox/{name}", "endpoint": CHAT, "max_runtime_sec": 24 * 3600}
    return {"id": name, "input": {"batch": batch}}


def environ(model: str, source: str, folder: str) -> dict[str, str]:
    """Return the settings of a worker whose volume is the folder, with the input in it."""
    place = Path(folder) / "inbox" / Path(source).name
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        place.hardlink_to(source)
    return {
        "MODEL_NAME": model,
        "FILES_PATH": folder,
        "MAX_MODEL_LEN": str(MAX_MODEL_LEN),
        "MAX_NUM_SEQS": str(SLOTS),
    }


async def answered(worker: Worker, source: str) -> None:
    """Run a batch to its end.

    Raises:
        Lost: it ends otherwise.
    """
    (answer,) = [chunk async for chunk in worker.handle(job(source))]
    if answer.get("batch", {}).get("status") != "completed":
        raise bench.Lost(f"the batch is {answer}")


async def main(worker: Worker, source: str, folder: str) -> None:
    # Of this process: the same name would be the same batch.
    warm = write_input(
        Path(folder) / "inbox" / f"{WARM}{os.getpid()}.jsonl", WARMUP, 16, names=WARM
    )
    await answered(worker, str(warm))
    before = memory.rss_mb()
    memory.begin_peak()
    bench.print_line("begun")
    start = time.perf_counter()
    await answered(worker, source)
    seconds = time.perf_counter() - start
    bench.print_line("ended", seconds, memory.peak_mb() - before)


if __name__ == "__main__":
    os.environ.update(environ(*sys.argv[1:]))
    with handler.started(gather(given_environ())) as (engines, settings):
        asyncio.run(main(Worker(engines, settings), *sys.argv[2:]))
