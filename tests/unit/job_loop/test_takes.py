"""Jobs are taken while slots are free: at once, and never more than can begin."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import HANG, Platform, looping, serving, session, urls
from support.processes.background import HUNG_S

from emulator import Action, Call, Emulator, Fault, Options, Status
from job_loop import Wire
from job_loop.loop import _ids_in, _jobs_in
from job_loop.polls import Polls
from job_loop.wire import Urls

SLOTS = 4


async def settled(platform: Platform) -> None:
    """Wait until the platform holds a take, or the loop may not take."""
    for _ in range(50):
        await asyncio.sleep(0.002)


async def test_as_many_jobs_run_as_there_are_slots(platform: Platform) -> None:
    jobs = [platform.submit(HANG) for _ in range(SLOTS + 3)]
    await platform.begun(*jobs[:SLOTS])
    await settled(platform)
    assert [job.status for job in jobs] == [Status.IN_PROGRESS] * SLOTS + [Status.IN_QUEUE] * 3


async def test_a_slot_that_becomes_free_takes_the_next_job(platform: Platform) -> None:
    jobs = [platform.submit(HANG) for _ in range(SLOTS + 1)]
    await platform.begun(*jobs[:SLOTS])
    platform.emulator.queue.cancel(jobs[0])
    await platform.begun(jobs[SLOTS])
    assert platform.answers.most_running == SLOTS


async def test_many_more_jobs_than_slots_all_get_their_answers(platform: Platform) -> None:
    jobs = [platform.submit(number) for number in range(200)]
    for number, job in enumerate(jobs):
        assert await job.wait_ended(HUNG_S)
        assert job.output == [number]
    assert platform.answers.most_running <= SLOTS


async def test_one_slot_runs_one_job_after_the_other() -> None:
    async with Emulator() as emulator, looping(emulator, jobs=1) as platform:
        jobs = [platform.submit(number) for number in range(20)]
        for job in jobs:
            assert await job.wait_ended(HUNG_S)
    assert platform.answers.most_running == 1
    assert platform.answers.closed == [job.id for job in jobs]


def test_an_idle_worker_says_so_and_a_busy_one_too() -> None:
    addresses = urls(Emulator())
    assert addresses.next_jobs(1, busy=False).endswith("/job-take/w?gpu=local&job_in_progress=0")
    batch = addresses.next_jobs(3, busy=True)
    assert batch.endswith("/job-take-batch/w?gpu=local&batch_size=3&job_in_progress=1")


async def test_the_pings_name_the_jobs_in_progress(platform: Platform) -> None:
    job = platform.submit(HANG)
    await platform.begun(job)
    assert platform.in_progress == {job.id}
    platform.emulator.queue.cancel(job)
    async with asyncio.timeout(HUNG_S):
        while platform.in_progress:
            await asyncio.sleep(0.001)


async def test_a_job_that_is_handed_over_twice_runs_once(platform: Platform) -> None:
    platform.emulator.faults.add(Fault(on=Call.TAKE, do=Action.DUPLICATE, calls=1))
    job = platform.submit("begun", HANG)
    await platform.begun(job)
    await settled(platform)
    assert (await platform.run("other")).output == ["other"]
    assert [record.id for record in platform.answers.records].count(job.id) == 1
    assert [chunk.output for chunk in job.chunks] == ["begun"]


@pytest.mark.parametrize(
    "fault",
    [{"do": Action.STATUS, "status": status} for status in (500, 502, 429, 404)]
    + [{"do": Action.RESET}],
)
async def test_failing_takes_are_tried_again(platform: Platform, fault: dict[str, Any]) -> None:
    # The take that is held now is answered by the first job.
    await platform.run("before")
    platform.emulator.faults.add(Fault(on=Call.TAKE, calls=3, **fault))
    assert (await platform.run("after")).output == ["after"]


async def test_a_take_that_comes_back_empty_is_made_again() -> None:
    async with Emulator(Options(take_poll_s=0.01)) as emulator, looping(emulator) as platform:
        await settled(platform)
        assert (await platform.run("late")).output == ["late"]


async def test_no_job_is_taken_while_the_engine_is_started_again() -> None:
    async with Emulator() as emulator, looping(emulator, jobs=SLOTS) as platform:
        platform.answers.ready = False
        # A take that was open already has the first.
        jobs = []
        for number in range(3):
            jobs.append(platform.submit(number))
            await settled(platform)
        assert [job.status for job in jobs[1:]] == [Status.IN_QUEUE] * 2
        platform.answers.ready = True
        for job in jobs:
            assert await job.wait_ended(HUNG_S)


async def test_no_job_is_taken_after_the_death_of_the_engine(platform: Platform) -> None:
    platform.died.set_result(None)
    await platform.ended()
    assert platform.submit("late").status is Status.IN_QUEUE


NESTED = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "answer", [NESTED, "no JSON", "{}", "[]", '"text"', '{"id": 1}', '[{"input": {}}, null]']
)
async def test_what_is_no_job_is_no_end_of_the_takes(platform: Platform, answer: str) -> None:
    asked = 0

    async def take(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=answer, content_type="application/json")

    async with serving(web.get("/job-take-batch/w", take)) as url:
        wire = Wire(Urls(f"{url}/job-take/w?", "", ""), session)
        polls = Polls(wire, _jobs_in, vital=True)
        async with wire:
            begun = time.monotonic()
            for _ in range(3):
                assert await polls.next(wire.urls.next_jobs(2, busy=False)) == []
            # With a pause between them.
            assert time.monotonic() - begun > 0.15
    assert asked == 3


@pytest.mark.parametrize("named", [[], None, 5, [5, None], {}, "job"])
async def test_a_platform_that_stops_nothing_is_not_asked_all_the_time(named: Any) -> None:
    asked = 0

    async def stop(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"jobsToStop": named})

    async with serving(web.get("/job-stop/w", stop)) as url:
        wire = Wire(Urls(f"{url}/job-take/w?", "", ""), session)
        polls = Polls(wire, _ids_in, vital=False)
        async with wire:
            for _ in range(3):
                begun = time.monotonic()
                assert await polls.next(wire.urls.stopped_jobs or "") == []
                assert time.monotonic() - begun > 0.05
    assert asked == 3
