"""Jobs are taken while slots are free: at once, and never more than can begin; some are stopped."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import HANG, Platform, looping, serving, session, urls
from support.processes.background import HUNG_S, eventually

from emulator import Action, Call, Emulator, Fault, Job, Options, Status
from job_loop import Wire, polls
from job_loop.loop import _ids_in, _jobs_in
from job_loop.polls import Polls
from job_loop.wire import Urls

SLOTS = 4


async def test_as_many_jobs_run_as_there_are_slots(platform: Platform) -> None:
    jobs = [platform.submit(HANG) for _ in range(SLOTS + 2)]
    await platform.begun(*jobs[:SLOTS])
    platform.emulator.queue.cancel(jobs[0])
    await platform.begun(jobs[SLOTS])
    # A take of too many would have come before.
    assert jobs[SLOTS + 1].status is Status.IN_QUEUE
    assert platform.answers.most_running == SLOTS


@pytest.mark.parametrize("slots", [1, SLOTS])
async def test_many_more_jobs_than_slots_all_get_their_answers(slots: int) -> None:
    async with Emulator() as emulator, looping(emulator, jobs=slots) as platform:
        jobs = [platform.submit(number) for number in range(100)]
        for number, job in enumerate(jobs):
            assert await job.wait_ended(HUNG_S)
            assert job.output == [number]
    assert platform.answers.most_running <= slots


def test_an_idle_worker_says_so_and_a_busy_one_too() -> None:
    addresses = urls(Emulator())
    assert addresses.next_jobs(1, busy=False).endswith("/job-take/w?gpu=local&job_in_progress=0")
    batch = addresses.next_jobs(3, busy=True)
    assert batch.endswith("/job-take-batch/w?gpu=local&batch_size=3&job_in_progress=1")


async def test_a_job_that_is_handed_over_twice_runs_once(platform: Platform) -> None:
    platform.emulator.faults.add(Fault(on=Call.TAKE, do=Action.DUPLICATE, calls=1))
    job = platform.submit("begun", HANG)
    await platform.begun(job)
    assert (await platform.run("other")).output == ["other"]
    assert [record.id for record in platform.answers.records].count(job.id) == 1
    assert [chunk.output for chunk in job.chunks] == ["begun"]


@pytest.mark.parametrize(
    "fault", [{"do": Action.RESET}, *({"do": "status", "status": code} for code in (500, 429, 404))]
)
async def test_failing_takes_are_tried_again(platform: Platform, fault: dict[str, Any]) -> None:
    # The take that waits now is answered by the first job.
    await platform.run("before")
    platform.emulator.faults.add(Fault(on=Call.TAKE, calls=3, **fault))
    assert (await platform.run("after")).output == ["after"]


async def test_a_take_that_comes_back_empty_is_made_again() -> None:
    async with Emulator(Options(take_poll_s=0.01)) as emulator, looping(emulator) as platform:
        await eventually(lambda: emulator.queue.worker("w").takes > 2)
        assert (await platform.run("late")).output == ["late"]


async def test_a_take_that_is_held_for_too_long_is_made_again_and_is_no_failure(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "HELD_S", 0.05)
    monkeypatch.setattr(polls, "pause_s", lambda _: 2 * HUNG_S)
    await platform.run("before")
    worker = platform.emulator.queue.worker("w")
    before = worker.takes
    await eventually(lambda: worker.takes > before + 2)
    assert (await platform.run("after")).output == ["after"]


async def test_no_job_is_taken_while_the_engine_is_started_again(platform: Platform) -> None:
    platform.answers.ready = False
    # A take that was open already has the first.
    jobs = []
    for number in range(3):
        jobs.append(platform.submit(number))
        await asyncio.sleep(0.05)  # the loop would take it now
    assert [job.status for job in jobs[1:]] == [Status.IN_QUEUE] * 2
    platform.answers.ready = True
    for job in jobs:
        assert await job.wait_ended(HUNG_S)


# What is no answer:


async def ask(answer: str, read: Callable[[Any], list[Any]]) -> float:
    """Let a platform answer two polls that find nothing; return how long they took."""
    asked = []

    async def poll(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(text=answer)

    async with (
        serving(web.get("/poll", poll)) as url,
        Wire(Urls(f"{url}/poll", "", ""), session) as wire,
    ):
        requests, begun = Polls(wire, read, vital=True), time.monotonic()
        for _ in range(2):
            assert await requests.next(wire.urls.take) == []
    assert len(asked) == 2
    return time.monotonic() - begun


@pytest.mark.parametrize("answer", ["[" * 3000 + "]" * 3000, "no JSON"])
async def test_what_can_not_be_read_is_no_end_of_the_takes(answer: str) -> None:
    await ask(answer, _jobs_in)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        *((jobs, _jobs_in) for jobs in ("{}", "[]", '"a"', '{"id": 1}', '[{"input": {}}, null]')),
        *((f'{{"jobsToStop": {named}}}', _ids_in) for named in ("[]", "null", "[5]", "{}", '"a"')),
    ],
)
async def test_a_platform_that_has_nothing_is_not_asked_all_the_time(
    answer: str, read: Callable[[Any], list[Any]]
) -> None:
    assert await ask(answer, read) > 1.9 * polls.EMPTY_S


# Jobs that the platform stops free their slots, and post nothing more:


@pytest.mark.parametrize("yields", [(HANG,), ("a", "b", HANG)])
async def test_a_running_job_is_cancelled(platform: Platform, yields: tuple[str, ...]) -> None:
    job = platform.submit(*yields, stream=True)
    await platform.begun(job)
    assert platform.in_progress == {job.id}  # as the pings name it
    await eventually(lambda: len(job.chunks) == len(yields) - 1)
    platform.emulator.queue.cancel(job)
    await platform.idle()
    assert platform.answers.closed == [job.id]
    assert platform.answers.records[0].status == 499


@pytest.mark.parametrize(
    "fault",
    [
        Fault(on=Call.STREAM, do=Action.DELAY, delay_s=2 * HUNG_S, calls=1),
        Fault(on=Call.DONE, do=Action.STATUS),
    ],
    ids=["a chunk hangs", "a result is tried again and again"],
)
async def test_a_post_ends_with_its_job(platform: Platform, fault: Fault) -> None:
    platform.emulator.faults.add(fault)
    job = platform.submit("a", "b")
    assert await anext(job.follow())
    platform.emulator.queue.cancel(job)
    await platform.idle()
    assert platform.answers.closed == [job.id]
    assert job.status is Status.CANCELLED


async def test_a_result_whose_post_hangs_ends_with_its_job(platform: Platform) -> None:
    fault = Fault(on=Call.DONE, do=Action.DELAY, delay_s=2 * HUNG_S, calls=1)
    platform.emulator.faults.add(fault)
    # The post has its effect before it hangs.
    job = await platform.run("a")
    platform.emulator.queue.worker("w").add_stops([job.id])
    await platform.idle()
    assert platform.answers.closed == [job.id]


async def test_many_cancelled_jobs_leave_no_trace(platform: Platform) -> None:
    async def cancelled(number: int) -> Job:
        job = platform.submit("a", *[HANG] * (number % 2), stream=True)
        await asyncio.sleep(0.0005 * (number % 7))
        platform.emulator.queue.cancel(job)
        return job

    jobs = await asyncio.gather(*(cancelled(number) for number in range(200)))
    assert (await platform.run("after")).output == ["after"]
    await platform.idle()
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
        await platform.idle()
