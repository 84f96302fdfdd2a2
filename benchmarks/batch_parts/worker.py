"""A process that runs a batch in a job of this worker, timed from the job to its end.

    python benchmarks/batch_parts/worker.py MODEL INPUT FOLDER

A later process continues the batch in the same folder.
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
from batch_parts.sides import CHAT, MAX_MODEL_LEN, SLOTS, WARM_UP_LINES, WARM_UP_NAME, write_input
from proof.measure import processes
from worker.app import Worker
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings


def job(source: str) -> dict[str, Any]:
    """Return the job of a batch; jobs with the same id belong to the same batch."""
    name = Path(source).name
    batch = {"input_path": f"inbox/{name}", "endpoint": CHAT, "max_runtime_sec": 24 * 3600}
    return {"id": name, "input": {"batch": batch}}


def environ(model: str, source: str, folder: str) -> dict[str, str]:
    """Put the input into the folder; return the settings of a worker with that volume."""
    path = Path(folder) / "inbox" / Path(source).name
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.hardlink_to(source)
    return {
        "MODEL_NAME": model,
        "FILES_PATH": folder,
        "MAX_MODEL_LEN": str(MAX_MODEL_LEN),
        "MAX_NUM_SEQS": str(SLOTS),
    }


async def run_batch(worker: Worker, source: str) -> None:
    """Run a batch to its end.

    Raises:
        Lost: If the batch does not complete.
    """
    (answer,) = [chunk async for chunk in worker.handle(job(source))]
    if answer.get("batch", {}).get("status") != "completed":
        raise processes.Lost(f"the batch is {answer}")


async def main(worker: Worker, source: str, folder: str) -> None:
    # The name contains the process id because the same name would mean the same batch.
    warm_up = write_input(
        Path(folder) / "inbox" / f"{WARM_UP_NAME}{os.getpid()}.jsonl",
        WARM_UP_LINES,
        16,
        names=WARM_UP_NAME,
    )
    await run_batch(worker, str(warm_up))
    before = memory.rss_mb()
    memory.reset_peak()
    bench.print_line("begun")
    start = time.perf_counter()
    await run_batch(worker, source)
    seconds = time.perf_counter() - start
    bench.print_line("ended", seconds, memory.peak_mb() - before)


if __name__ == "__main__":
    os.environ.update(environ(*sys.argv[1:]))
    with handler.start_engines(gather_settings(environ_with_secrets())) as (engines, settings):
        asyncio.run(main(Worker(engines, settings), *sys.argv[2:]))
