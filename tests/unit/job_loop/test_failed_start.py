"""The loop before what tells why a worker does not start: it ends, and all are told the same."""

import asyncio
import json
from concurrent.futures import Future

from support.job_loops import session, urls
from support.processes.background import HUNG_S

from emulator import Emulator, Status
from job_loop import JobLoop, Limits, Wire
from worker.errors import StartFailed
from worker.start.failed import FailedStart

WHY = "MODEL_NAME is not set"


def loop_of(emulator: Emulator, limits: Limits) -> JobLoop:
    wire = Wire(urls(emulator), session)
    return JobLoop(FailedStart(StartFailed(WHY)), wire, limits, Future(), set[str]())


async def test_it_ends_though_jobs_never_stop_coming() -> None:
    async with Emulator() as emulator, asyncio.timeout(HUNG_S):
        jobs = [emulator.queue.submit({"input": {}})]
        loop = loop_of(emulator, Limits(4, grace_s=60, idle_s=HUNG_S, life_s=0.5))
        ending = asyncio.create_task(loop.run())
        while not ending.done():
            # One always waits.
            if jobs[-1].status is not Status.IN_QUEUE:
                jobs.append(emulator.queue.submit({"input": {}}))
            await asyncio.sleep(0.001)
        await ending
    assert [job.status for job in jobs[:-1]] == [Status.FAILED] * (len(jobs) - 1)


async def test_a_job_that_is_not_read_is_told_why_the_worker_does_not_start() -> None:
    async with Emulator() as emulator, asyncio.timeout(HUNG_S):
        job = emulator.queue.submit({"input": {"prompts": [{"a": 1}] * 10}})
        await loop_of(emulator, Limits(4, grace_s=60, values=9, idle_s=0.2)).run()
    assert json.loads(job.error or "")["error"]["message"] == WHY
