"""The loop ends in order: no further job, those that run are answered, then it is over."""

import asyncio
import json
import os
import signal
import time

import pytest
from support.job_loops import HANG, Platform, looping
from support.processes.background import HUNG_S

from emulator import Action, Call, Emulator, Fault, Status
from job_loop.polls import READ_S


async def test_an_idle_worker_leaves_at_once(platform: Platform) -> None:
    await platform.run("first")
    begun = time.monotonic()
    platform.loop.leave()
    await platform.ended()
    # The platform holds a take for 20 s.
    assert time.monotonic() - begun < 10
    assert platform.submit("late").status is Status.IN_QUEUE


async def test_what_runs_is_finished_and_nothing_more(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No job waited for the take, so none is on its way.
    monkeypatch.setattr("job_loop.loop.TAKE_PATIENCE_S", 0)
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=Action.DELAY, delay_s=0.5, calls=2))
    job = platform.submit("a", "b", stream=True)
    await platform.begun(job)
    assert not platform.answers.left
    platform.loop.leave()
    assert platform.answers.left
    await asyncio.sleep(4 * READ_S)
    late = platform.submit("late")
    await platform.ended()
    assert (job.status, job.output) == (Status.COMPLETED, ["a", "b"])
    assert late.status is Status.IN_QUEUE


async def test_a_job_that_is_handed_over_during_the_signal_is_answered(platform: Platform) -> None:
    await platform.run("first")
    job = platform.submit("second")
    # The take's answer is on its way.
    platform.loop.leave()
    await platform.ended()
    assert (job.status, job.output) == (Status.COMPLETED, ["second"])


async def test_after_the_grace_jobs_fail_retryably_with_what_they_have() -> None:
    async with Emulator() as emulator, looping(emulator, grace_s=0.1) as platform:
        job = platform.submit("begun", HANG, stream=True)
        await platform.begun(job)
        platform.loop.leave()
        await platform.ended()
    error = json.loads(job.error or "")["error"]
    assert (job.status, error["code"], error["retryable"]) == (Status.FAILED, 503, True)
    assert [chunk.output for chunk in job.chunks] == ["begun"]


async def test_an_unreachable_platform_does_not_keep_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("job_loop.loop.LAST_POSTS_S", 0.2)
    async with Emulator() as emulator, looping(emulator, grace_s=0.1) as platform:
        emulator.faults.add(Fault(on=Call.DONE, do=Action.STATUS))
        job = platform.submit("whole")
        assert await job.changed.wait_for(lambda: bool(job.chunks), HUNG_S)
        platform.loop.leave()
        await platform.ended()
    assert job.status is Status.IN_PROGRESS
    assert platform.in_progress == set()


async def test_a_pause_after_failures_ends_with_the_signal(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("job_loop.polls.pause_s", lambda _: 2 * HUNG_S)
    await platform.run("first")
    platform.emulator.faults.add(Fault(on=Call.TAKE, do=Action.STATUS))
    await platform.run("second")
    await asyncio.sleep(0.05)
    platform.loop.leave()
    await platform.ended()


async def test_a_signal_begins_it_and_a_second_one_goes_to_the_handler_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    second: list[int] = []

    def exit_now(number: int, _: object) -> None:
        second.append(number)

    signal.signal(signal.SIGTERM, exit_now)
    try:
        async with Emulator() as emulator, looping(emulator) as platform:
            job = platform.submit(HANG)
            await platform.begun(job)
            assert signal.getsignal(signal.SIGTERM) is not exit_now
            os.kill(os.getpid(), signal.SIGTERM)
            # The loop's own handler gives way to it.
            async with asyncio.timeout(HUNG_S):
                while signal.getsignal(signal.SIGTERM) is not exit_now:
                    await asyncio.sleep(0.001)
            assert second == []
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(HUNG_S):
                while not second:
                    await asyncio.sleep(0.001)
            emulator.queue.cancel(job)
            await platform.ended()
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert second == [signal.SIGTERM]
