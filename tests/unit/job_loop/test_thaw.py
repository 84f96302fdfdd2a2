"""A process that did not run for a while leaves its connections behind: they may be dead."""

import time
from types import SimpleNamespace

import pytest
from aiohttp import ClientSession
from support.job_loops import HANG, Platform, looping
from support.processes.background import HUNG_S, eventually

from emulator import Action, Call, Emulator, Fault, Options, Status
from job_loop import polls, wire

# Seconds; no machine is so busy that a process which is to run does not run for as long.
FROZEN_S = HUNG_S


class TimeOfDay:
    """The time of day, as the wire reads it.

    Nothing runs in a frozen process, the emulator neither: for this one the time of day jumps.
    """

    def __init__(self) -> None:
        self.looks = 0
        self.between_looks_s = 0.0
        self._passed = 0.0

    def __call__(self) -> float:
        self.looks += 1
        self._passed += self.between_looks_s
        return time.time() + self._passed

    def freeze(self) -> None:
        self._passed += FROZEN_S


@pytest.fixture(autouse=True)
def time_of_day(monkeypatch: pytest.MonkeyPatch) -> TimeOfDay:
    made = TimeOfDay()
    monkeypatch.setattr(wire, "FROZEN_S", FROZEN_S)
    monkeypatch.setattr(wire, "TICK_S", 0.01)
    monkeypatch.setattr(wire, "time", SimpleNamespace(time=made, monotonic=time.monotonic))
    return made


async def thaw(platform: Platform, time_of_day: TimeOfDay) -> ClientSession:
    """Freeze and thaw the process; return the session that is left behind."""
    before = platform.wire._session
    time_of_day.freeze()
    await eventually(lambda: platform.wire._session is not before)
    return before


async def test_an_idle_worker_takes_its_next_job_on_new_connections(
    platform: Platform, caplog: pytest.LogCaptureFixture, time_of_day: TimeOfDay
) -> None:
    caplog.set_level("INFO")
    await platform.run("before")
    await thaw(platform, time_of_day)
    assert (await platform.run("after")).output == ["after"]
    assert "thawed after 300 s" in caplog.text


async def test_a_take_that_waits_is_hung_up_and_made_again(time_of_day: TimeOfDay) -> None:
    options = Options(take_poll_s=2 * HUNG_S)
    async with Emulator(options) as emulator, looping(emulator) as platform:
        worker = emulator.queue.worker("w")
        await eventually(lambda: worker.takes == 1)
        await thaw(platform, time_of_day)
        await eventually(lambda: worker.takes == 2)


async def test_a_job_that_came_during_the_freeze_runs(
    platform: Platform, time_of_day: TimeOfDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer is read in that time, also on a busy machine.
    monkeypatch.setattr(polls, "READ_S", HUNG_S)
    await platform.run("before")
    # A take waits.
    await eventually(lambda: platform.emulator.queue.worker("w").takes == 2)
    job = platform.submit("during")
    time_of_day.freeze()
    assert await job.wait_ended(HUNG_S)
    assert job.output == ["during"]


async def test_a_stream_goes_on_after_a_thaw(platform: Platform, time_of_day: TimeOfDay) -> None:
    job = platform.submit("a", HANG, stream=True)
    assert await anext(job.follow())
    await thaw(platform, time_of_day)
    assert (await platform.run("other")).status is Status.COMPLETED
    assert job.status is Status.IN_PROGRESS
    platform.emulator.queue.cancel(job)


async def test_posts_under_way_end_on_old_connections(
    platform: Platform, time_of_day: TimeOfDay
) -> None:
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=Action.DELAY, delay_s=0.1, calls=1))
    job = platform.submit("a", "b", stream=True)
    assert await anext(job.follow())
    left_behind = await thaw(platform, time_of_day)
    assert await job.wait_ended(HUNG_S)
    assert (job.status, job.output) == (Status.COMPLETED, ["a", "b"])
    assert not left_behind.closed


async def test_old_connections_are_closed_when_the_last_of_their_posts_must_have_ended(
    platform: Platform, time_of_day: TimeOfDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "POST_S", 0.005)
    left_behind = await thaw(platform, time_of_day)
    await eventually(lambda: left_behind.closed)
    await eventually(lambda: not platform.wire._closing)


async def test_an_end_closes_all_connections(platform: Platform, time_of_day: TimeOfDay) -> None:
    sessions = [await thaw(platform, time_of_day) for _ in range(2)]
    sessions.append(platform.wire._session)
    platform.loop.leave()
    await platform.ended()
    assert [session.closed for session in sessions] == [True] * 3


async def test_a_process_that_runs_is_not_thawed(
    platform: Platform, caplog: pytest.LogCaptureFixture, time_of_day: TimeOfDay
) -> None:
    caplog.set_level("INFO")
    time_of_day.between_looks_s = 0.8 * FROZEN_S
    looks = time_of_day.looks
    await platform.run("a")
    await eventually(lambda: time_of_day.looks >= looks + 5)
    assert "thawed" not in caplog.text
