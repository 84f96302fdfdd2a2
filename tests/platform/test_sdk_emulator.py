"""Tests of the emulator with workers of the real SDK, without an engine.

test_sdk_protocol.py tests the exchanged requests. The chaos tests and unit/job_loop/test_thaw.py
test frozen workers.
"""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.processes.background import HUNG_S
from support.processes.scripted_worker import LOOPS, scripted_worker

from emulator import Emulator, Job

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_CONCURRENCY = 8


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=LOOPS)
async def emulator(request: pytest.FixtureRequest) -> AsyncIterator[Emulator]:
    """Start an emulator with one worker, whose jobs one of the loops runs."""
    async with (
        Emulator() as running,
        scripted_worker(running.worker_environ(), MAX_CONCURRENCY, request.param),
    ):
        assert await running.queue.changed.wait_for(lambda: bool(running.queue.workers), HUNG_S)
        yield running


def submit(emulator: Emulator, *yields: object) -> Job:
    return emulator.queue.submit({"input": {"yields": yields}})


async def test_the_status_of_a_running_job_includes_its_progress(emulator: Emulator) -> None:
    job = submit(emulator, {"progress": "half"}, "hang")
    assert await job.changed.wait_for(lambda: job.progress is not None, HUNG_S)
    report = json.loads(b"".join(job.status_json()))
    assert (report["status"], report["output"]) == ("IN_PROGRESS", "half")
    emulator.queue.cancel(job)


async def test_cancelling_jobs_frees_the_slots_of_the_worker(emulator: Emulator) -> None:
    """Each slot has a hanging job, so the next job runs only if a cancel frees a slot."""
    hanging = [submit(emulator, "begun", "hang") for _ in range(MAX_CONCURRENCY)]
    for job in hanging:
        assert await anext(job.follow_chunks())
        emulator.queue.cancel(job)
    job = submit(emulator, "next")
    assert await job.wait_for_end(HUNG_S)
    assert job.output == ["next"]


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_job_submitted_after_a_polling_worker_died_runs_on_the_next_worker(
    loop: str,
) -> None:
    """The dead worker's poll lasts 20 s and must not receive the job."""
    async with Emulator() as emulator:
        queue = emulator.queue
        async with scripted_worker(emulator.worker_environ("dead"), MAX_CONCURRENCY, loop):
            assert await queue.changed.wait_for(lambda: "dead" in queue.workers, HUNG_S)
        job = submit(emulator, "run")
        async with scripted_worker(emulator.worker_environ("alive"), MAX_CONCURRENCY, loop):
            assert await job.wait_for_end(HUNG_S)
    assert (job.worker_id, job.output) == ("alive", ["run"])
