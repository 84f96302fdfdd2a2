"""A job that the platform stops frees its slot, and posts nothing more."""

import asyncio

import pytest
from support.job_loops import HANG, Platform, looping
from support.processes.background import HUNG_S

from emulator import Action, Call, Emulator, Fault, Job, Options, Status


async def slot_is_free(platform: Platform) -> None:
    """Wait until no job is in progress."""
    async with asyncio.timeout(HUNG_S):
        while platform.in_progress:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("yields", [(HANG,), ("a", HANG), ("a", "b", HANG)])
async def test_a_running_job_is_cancelled(platform: Platform, yields: tuple[str, ...]) -> None:
    job = platform.submit(*yields, stream=True)
    await platform.begun(job)
    await job.changed.wait_for(lambda: len(job.chunks) == len(yields) - 1, HUNG_S)
    platform.emulator.queue.cancel(job)
    await slot_is_free(platform)
    assert platform.answers.closed == [job.id]
    assert platform.answers.records[0].status == 499


@pytest.mark.parametrize("call", [Call.STREAM, Call.DONE])
async def test_a_post_that_hangs_ends_with_its_job(platform: Platform, call: Call) -> None:
    platform.emulator.faults.add(Fault(on=call, do=Action.DELAY, delay_s=2 * HUNG_S, calls=1))
    job = platform.submit("a", "b")
    await platform.begun(job)
    if call is Call.DONE:
        # The post has its effect before it hangs.
        assert await job.wait_ended(HUNG_S)
        platform.emulator.queue.worker("w").add_stops([job.id])
    else:
        assert await anext(job.follow())
        platform.emulator.queue.cancel(job)
    await slot_is_free(platform)
    assert platform.answers.closed == [job.id]


async def test_a_job_that_is_tried_again_and_again_can_be_cancelled(platform: Platform) -> None:
    platform.emulator.faults.add(Fault(on=Call.DONE, do=Action.STATUS))
    job = platform.submit("a")
    await job.changed.wait_for(lambda: bool(job.chunks), HUNG_S)
    platform.emulator.queue.cancel(job)
    await slot_is_free(platform)
    assert job.status is Status.CANCELLED


async def test_many_cancelled_jobs_leave_no_trace(platform: Platform) -> None:
    async def cancelled(number: int) -> Job:
        job = platform.submit("a", *[HANG] * (number % 2), stream=True)
        await asyncio.sleep(0.0005 * (number % 7))
        platform.emulator.queue.cancel(job)
        return job

    jobs = await asyncio.gather(*(cancelled(number) for number in range(200)))
    assert (await platform.run("after")).output == ["after"]
    await slot_is_free(platform)
    assert {job.status for job in jobs} <= {Status.CANCELLED, Status.COMPLETED}
    assert platform.answers.running == set()


async def test_a_stop_for_an_unknown_job_stops_nothing(platform: Platform) -> None:
    platform.emulator.queue.worker("w").add_stops(["unknown"])
    assert (await platform.run("after")).output == ["after"]


async def test_stops_are_heard_after_the_platform_was_away() -> None:
    async with Emulator(Options(take_poll_s=0.05)) as emulator, looping(emulator) as platform:
        emulator.faults.add(Fault(on=Call.STOP, do=Action.RESET, calls=3))
        job = platform.submit(HANG)
        await platform.begun(job)
        emulator.queue.cancel(job)
        await slot_is_free(platform)
