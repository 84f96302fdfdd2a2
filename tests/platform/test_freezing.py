"""A worker's processes stop for a while, as under a platform that freezes idle workers."""

import asyncio
import signal

from support.processes.background import HUNG_S
from support.processes.scripted_worker import scripted_worker

from emulator import Emulator, Status
from job_loop.wire import FROZEN_S


async def test_a_job_that_was_handed_over_to_a_frozen_worker_runs_after_the_thaw() -> None:
    """Its answer lies in the worker's socket when the worker notices that it was frozen."""
    async with (
        Emulator() as emulator,
        scripted_worker(emulator.worker_environ(), 8, "worker") as process,
    ):
        first = emulator.queue.submit({"input": {"yields": ["first"]}})
        assert await first.wait_ended(HUNG_S)
        # The first take has brought the job; the next one is held.
        async with asyncio.timeout(HUNG_S):
            while emulator.queue.worker("worker-1").takes < 2:
                await asyncio.sleep(0.01)
        process.signal(signal.SIGSTOP)
        job = emulator.queue.submit({"input": {"yields": ["second"]}})
        await asyncio.sleep(1.2 * FROZEN_S)
        assert job.status is Status.IN_PROGRESS
        process.signal(signal.SIGCONT)
        assert await job.wait_ended(HUNG_S)
        assert (job.status, job.output) == (Status.COMPLETED, ["second"])
