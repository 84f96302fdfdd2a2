"""A worker without an engine: the real SDK around a handler that does what its input says.

Started as in production: `python -u scripted.py` with the platform's RUNPOD_* variables.
LOOP=sdk leaves the jobs to the SDK's own loop, which shows what the platform has to understand.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any

import runpod

from job_loop import JobLoop, Limits, Wire, sdk
from worker.errors import WorkerError
from worker.record import JobRecord

HANG = "hang"  # an output that never comes
PROGRESS = "progress"  # a key whose value is sent as progress, not yielded


async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
    # Without them it is the endpoint's question about the models.
    for output in job["input"].get("yields", [{"object": "list", "data": [{"id": "m"}]}]):
        if output == HANG:
            await asyncio.sleep(3600)
        if isinstance(output, dict) and PROGRESS in output:
            runpod.serverless.progress_update(job, output[PROGRESS])
        else:
            yield output


class Answers:
    """The handler for the worker's loop."""

    def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]:
        record.streamed = True
        return handler(job)

    ready = True

    def leave(self) -> None:
        """Let them run."""

    def end_all(self, error: WorkerError) -> None:
        """Leave them to be cancelled."""


if __name__ == "__main__":
    max_concurrency = int(os.environ["MAX_CONCURRENCY"])
    if os.environ["LOOP"] == "worker":
        assert sdk.fits()
        wire, limits = Wire(sdk.urls(), sdk.session), Limits(max_concurrency, grace_s=0)
        sdk.install(JobLoop(Answers(), wire, limits, Future(), sdk.in_progress()))
    runpod.serverless.start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _: max_concurrency,
        }
    )
