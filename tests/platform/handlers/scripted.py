"""A worker without an engine: the real SDK with a handler that follows a script in the input.

Started as in production: `python -u scripted.py` with the platform's RUNPOD_* variables. With
LOOP=sdk, the SDK's own loop runs the jobs, for comparison with the worker's loop.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any

import runpod

from job_loop import JobLoop, LoopLimits, PlatformClient, sdk
from worker.errors import WorkerError
from worker.record import JobRecord

HANG = "hang"  # an output that never arrives
PROGRESS = "progress"  # a key whose value is sent as progress instead of a chunk


async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
    # Without a script, the job is the endpoint's request for the list of models.
    for output in job["input"].get("yields", [{"object": "list", "data": [{"id": "m"}]}]):
        if output == HANG:
            await asyncio.sleep(3600)
        if isinstance(output, dict) and PROGRESS in output:
            runpod.serverless.progress_update(job, output[PROGRESS])
        else:
            yield output


class Answers:
    """The scripted handler in the form that the worker's job loop needs."""

    def handle(self, job: dict[str, Any], record: JobRecord) -> AsyncGenerator[Any, None]:
        record.streamed = True
        return handler(job)

    ready = True

    def takes_slot(self, _: dict[str, Any]) -> bool:
        return True

    def stop_long_work(self) -> None:
        """Let all jobs run."""

    def fail_all_jobs(self, error: WorkerError) -> None:
        """Leave all jobs to be cancelled."""


if __name__ == "__main__":
    max_concurrency = int(os.environ["MAX_CONCURRENCY"])
    if os.environ["LOOP"] == "worker":
        assert sdk.is_compatible()
        wire, limits = (
            PlatformClient(sdk.platform_urls(), sdk.create_session),
            LoopLimits(max_concurrency, grace_s=0),
        )
        sdk.replace_scaler(JobLoop(Answers(), wire, limits, Future(), sdk.reset_jobs_in_progress()))
    runpod.serverless.start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _: max_concurrency,
        }
    )
