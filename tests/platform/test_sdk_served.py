"""The emulator with workers of the real SDK, without an engine.

What they say to each other test_sdk_protocol.py shows; what a freeze does, chaos and
unit/job_loop/test_thaw.py.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.processes.background import HUNG_S
from support.processes.scripted_worker import LOOPS, scripted_worker

from emulator import Emulator, Job

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_CONCURRENCY = 8


@pytest.fixture(scope="module", params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def emulator(loop: str) -> AsyncIterator[Emulator]:
    """An emulator with one worker for all the tests below."""
    async with (
        Emulator() as running,
        scripted_worker(running.worker_environ(), MAX_CONCURRENCY, loop),
    ):
        assert await running.queue.arrived.wait_for(lambda: bool(running.queue.workers), HUNG_S)
        yield running


def submit(emulator: Emulator, *yields: object) -> Job:
    return emulator.queue.submit({"input": {"yields": yields}})


async def test_progress_shows_in_the_status_of_a_running_job(emulator: Emulator) -> None:
    job = submit(emulator, {"progress": "half"}, "hang")
    assert await job.changed.wait_for(lambda: job.progress is not None, HUNG_S)
    report = job.report()
    assert (report["status"], report["output"]) == ("IN_PROGRESS", "half")
    emulator.queue.cancel(job)


async def test_cancelling_frees_the_workers_slots(emulator: Emulator) -> None:
    """With a hanging job in every slot, the next job runs only if cancelling frees one."""
    hanging = [submit(emulator, "begun", "hang") for _ in range(MAX_CONCURRENCY)]
    for job in hanging:
        assert await anext(job.follow())
        emulator.queue.cancel(job)
    job = submit(emulator, "next")
    assert await job.wait_ended(HUNG_S)
    assert job.output == ["next"]


async def test_a_job_that_comes_after_its_polling_worker_died_is_run_by_the_next(loop: str) -> None:
    """The dead worker's poll, held for 20 s, must not swallow the job."""
    async with Emulator() as emulator:
        queue = emulator.queue
        async with scripted_worker(emulator.worker_environ("dead"), MAX_CONCURRENCY, loop):
            assert await queue.arrived.wait_for(lambda: "dead" in queue.workers, HUNG_S)
        job = submit(emulator, "run")
        async with scripted_worker(emulator.worker_environ("alive"), MAX_CONCURRENCY, loop):
            assert await job.wait_ended(HUNG_S)
    assert (job.worker, job.output) == ("alive", ["run"])
