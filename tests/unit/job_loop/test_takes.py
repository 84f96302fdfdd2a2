"""Takes of jobs while slots are free, and stops of running jobs."""

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import ClientSession, web
from support.job_loops import HANG, Platform, platform_urls, run_job_loop, serve_routes
from support.processes.background import HUNG_S, poll_until

from emulator import Action, Call, Emulator, Fault, Job, Options, Status
from job_loop import PlatformClient, loop, polls, wire
from job_loop.parsing import find_jobs, find_stopped_job_ids
from job_loop.polls import Poller
from job_loop.wire import PlatformUrls

SLOTS = 4


async def test_as_many_jobs_run_as_there_are_slots(platform: Platform) -> None:
    jobs = [platform.submit(HANG) for _ in range(SLOTS + 2)]
    await platform.wait_until_begun(*jobs[:SLOTS])
    platform.emulator.queue.cancel(jobs[0])
    await platform.wait_until_begun(jobs[SLOTS])
    # A take of too many jobs would have happened earlier.
    assert jobs[SLOTS + 1].status is Status.IN_QUEUE
    assert platform.answers.max_running == SLOTS


async def test_long_jobs_take_no_slot_of_the_others(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_JOBS_WITHOUT_SLOT", 9)
    long_jobs = [platform.submit(HANG, long=True) for _ in range(9)]
    await platform.wait_until_begun(*long_jobs)
    jobs = [platform.submit(HANG) for _ in range(SLOTS + 1)]
    await platform.wait_until_begun(*jobs[:SLOTS])
    assert jobs[SLOTS].status is Status.IN_QUEUE
    assert platform.in_progress == {job.id for job in (*long_jobs, *jobs[:SLOTS])}
    platform.emulator.queue.cancel(jobs[0])
    await platform.wait_until_begun(jobs[SLOTS])


async def test_a_long_job_above_their_maximum_fails_as_retryable(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_JOBS_WITHOUT_SLOT", 2)
    long_jobs = [platform.submit(HANG, long=True) for _ in range(2)]
    await platform.wait_until_begun(*long_jobs)
    error = json.loads((await platform.run(long=True)).error or "")["error"]
    assert (error["code"], error["retryable"]) == (503, True)
    assert "has 2 jobs for batches and fine-tunes" in error["message"]
    platform.emulator.queue.cancel(long_jobs[0])
    await poll_until(lambda: long_jobs[0].id not in platform.in_progress)
    assert (await platform.run("done", long=True)).output == ["done"]


@pytest.mark.parametrize("slots", [1, SLOTS])
async def test_many_more_jobs_than_slots_all_get_their_answers(slots: int) -> None:
    async with Emulator() as emulator, run_job_loop(emulator, jobs=slots) as platform:
        jobs = [platform.submit(number) for number in range(40)]
        for number, job in enumerate(jobs):
            assert await job.wait_for_end(HUNG_S)
            assert job.output == [number]
    assert platform.answers.max_running <= slots


async def test_a_slot_is_free_while_the_result_of_its_job_is_posted() -> None:
    async with Emulator() as emulator, run_job_loop(emulator, jobs=1) as platform:
        fault = Fault(on=Call.DONE, do=Action.DELAY, delay_s=2 * HUNG_S)
        platform.emulator.faults.add(fault)
        jobs = [platform.submit(number, whole=True) for number in range(3)]
        await platform.wait_until_begun(*jobs[:2])
        # The results of as many jobs as there are slots may wait.
        assert platform.in_progress == {job.id for job in jobs[:2]}
        assert jobs[2].status is Status.IN_QUEUE


def test_a_take_reports_whether_the_worker_is_busy() -> None:
    addresses = platform_urls(Emulator())
    assert addresses.take_jobs_url(1, is_busy=False).endswith(
        "/job-take/w?gpu=local&job_in_progress=0"
    )
    batch = addresses.take_jobs_url(3, is_busy=True)
    assert batch.endswith("/job-take-batch/w?gpu=local&batch_size=3&job_in_progress=1")


async def test_a_job_that_is_handed_over_twice_runs_once(platform: Platform) -> None:
    platform.emulator.faults.add(Fault(on=Call.TAKE, do=Action.DUPLICATE, calls=1))
    job = platform.submit("begun", HANG)
    await platform.wait_until_begun(job)
    assert (await platform.run("other")).output == ["other"]
    assert [record.id for record in platform.answers.records].count(job.id) == 1
    # The chunk is posted while the other job runs, which may end first.
    await poll_until(lambda: job.chunks)
    assert [chunk.output for chunk in job.chunks] == ["begun"]


@pytest.mark.parametrize(
    "fault", [{"do": Action.RESET}, *({"do": "status", "status": code} for code in (500, 404))]
)
async def test_failed_takes_are_retried(platform: Platform, fault: dict[str, Any]) -> None:
    # The first job answers the take that is open now.
    await platform.run("before")
    platform.emulator.faults.add(Fault(on=Call.TAKE, calls=3, **fault))
    assert (await platform.run("after")).output == ["after"]


@pytest.mark.parametrize("status", [300, 307])
async def test_no_job_is_taken_from_an_address_that_a_response_names(
    status: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "OUTAGE_S", 0.0)
    hits = []

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": f"{other}/jobs"})

    async def offer_job(request: web.Request) -> web.Response:
        hits.append(request)
        return web.json_response([{"id": "a", "input": {}}])

    async with (
        serve_routes(web.get("/jobs", offer_job)) as other,
        serve_routes(web.get("/take", redirect)) as url,
        PlatformClient(PlatformUrls(f"{url}/take", f"{url}/?", f"{url}/?"), ClientSession) as peer,
    ):
        poller = Poller(peer, find_jobs, reports_outages=True)
        assert [await poller.poll(peer.urls.take) for _ in range(2)] == [[], []]
    assert not hits
    assert f"calls to the platform fail ({status}, message='a redirect" in caplog.text


async def test_an_empty_take_is_repeated() -> None:
    async with Emulator(Options(long_poll_s=0.01)) as emulator, run_job_loop(emulator) as platform:
        await poll_until(lambda: emulator.queue.get_worker("w").takes > 2)
        assert (await platform.run("late")).output == ["late"]


async def test_a_take_that_exceeds_its_timeout_is_repeated_and_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polls, "LONG_POLL_S", 0.05)
    monkeypatch.setattr(polls, "backoff_s", lambda _: 2 * HUNG_S)
    async with Emulator() as emulator, run_job_loop(emulator):
        await poll_until(lambda: emulator.queue.get_worker("w").takes > 2)


async def test_no_job_is_taken_while_the_engine_restarts(platform: Platform) -> None:
    await poll_until(lambda: platform.emulator.queue.get_worker("w").takes == 1)
    platform.answers.ready = False
    # The take that is already open gets the first job.
    first = platform.submit(0)
    assert await first.wait_for_end(HUNG_S)
    others = [platform.submit(number) for number in (1, 2)]
    await asyncio.sleep(0.1)  # the loop would take them now
    assert [job.status for job in others] == [Status.IN_QUEUE] * 2
    platform.answers.ready = True
    for job in others:
        assert await job.wait_for_end(HUNG_S)


@pytest.mark.parametrize("response", ["[" * 3000 + "]" * 3000, "no JSON", "[]"])
async def test_a_platform_that_has_nothing_is_polled_with_pauses(response: str) -> None:
    async def poll(_: web.Request) -> web.Response:
        return web.Response(text=response)

    async with (
        serve_routes(web.get("/poll", poll)) as url,
        PlatformClient(PlatformUrls(f"{url}/poll", f"{url}/?", f"{url}/?"), ClientSession) as peer,
    ):
        poller, start = Poller(peer, find_jobs, reports_outages=True), time.monotonic()
        for _ in range(2):
            assert await poller.poll(peer.urls.take) == []
    # A failure has a pause of its own.
    assert response != "[]" or time.monotonic() - start > 1.9 * polls.MIN_INTERVAL_S


@pytest.mark.parametrize("response", [None, [], {}, "a", {"id": 1}, [{"input": {}}, None]])
def test_jobs_without_an_id_are_not_run_but_logged(
    response: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_jobs(response) == []
    assert ("jobs without an id" in caplog.text) == (response not in (None, []))


@pytest.mark.parametrize("ids", [[], None, [5], {}, "a"])
def test_a_response_without_ids_stops_no_jobs(ids: Any) -> None:
    assert find_stopped_job_ids({"jobsToStop": ids}) == []


# Jobs that the platform stops free their slots and post nothing more:


@pytest.mark.parametrize("yields", [(HANG,), ("a", "b", HANG)])
async def test_a_running_job_is_cancelled(platform: Platform, yields: tuple[str, ...]) -> None:
    job = platform.submit(*yields, stream=True)
    await platform.wait_until_begun(job)
    assert platform.in_progress == {job.id}  # which the pings report
    await poll_until(lambda: len(job.chunks) == len(yields) - 1)
    platform.emulator.queue.cancel(job)
    await platform.wait_until_idle()
    assert platform.answers.closed_jobs == [job.id]
    assert platform.answers.records[0].status == 499


@pytest.mark.parametrize(
    "fault",
    [
        Fault(on=Call.STREAM, do=Action.DELAY, delay_s=2 * HUNG_S, calls=1),
        Fault(on=Call.DONE, do=Action.STATUS),
    ],
    ids=["a chunk hangs", "a result is retried"],
)
async def test_a_post_ends_when_its_job_is_cancelled(platform: Platform, fault: Fault) -> None:
    platform.emulator.faults.add(fault)
    job = platform.submit("a", "b")
    assert await anext(job.follow_chunks())
    platform.emulator.queue.cancel(job)
    await platform.wait_until_idle()
    assert platform.answers.closed_jobs == [job.id]
    assert job.status is Status.CANCELLED


async def test_a_hanging_post_of_a_result_ends_when_its_job_is_stopped(platform: Platform) -> None:
    fault = Fault(on=Call.DONE, do=Action.DELAY, delay_s=2 * HUNG_S, calls=1)
    platform.emulator.faults.add(fault)
    # The post has its effect before it hangs.
    job = await platform.run("a")
    platform.emulator.queue.get_worker("w").add_pending_stops([job.id])
    await platform.wait_until_idle()
    assert platform.answers.closed_jobs == [job.id]


async def test_many_cancelled_jobs_leave_no_trace(platform: Platform) -> None:
    async def run_and_cancel(number: int) -> Job:
        job = platform.submit("a", *[HANG] * (number % 2), stream=True)
        await asyncio.sleep(0.0005 * (number % 7))
        platform.emulator.queue.cancel(job)
        return job

    jobs = await asyncio.gather(*(run_and_cancel(number) for number in range(200)))
    assert (await platform.run("after")).output == ["after"]
    await platform.wait_until_idle()
    assert {job.status for job in jobs} <= {Status.CANCELLED, Status.COMPLETED}
    assert platform.answers.running_jobs == set()


async def test_a_stop_for_an_unknown_job_stops_nothing(platform: Platform) -> None:
    platform.emulator.queue.get_worker("w").add_pending_stops(["unknown"])
    assert (await platform.run("after")).output == ["after"]


async def test_stops_are_received_after_an_outage_of_the_platform() -> None:
    async with Emulator(Options(long_poll_s=0.05)) as emulator, run_job_loop(emulator) as platform:
        emulator.faults.add(Fault(on=Call.STOP, do=Action.RESET, calls=3))
        job = platform.submit(HANG)
        await platform.wait_until_begun(job)
        emulator.queue.cancel(job)
        await platform.wait_until_idle()
