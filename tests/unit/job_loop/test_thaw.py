"""A process that was frozen replaces its connections because they may be dead."""

import time
from types import SimpleNamespace

import pytest
from aiohttp import ClientSession
from support.job_loops import HANG, Platform, run_job_loop
from support.processes.background import HUNG_S, poll_until

from emulator import Action, Call, Emulator, Fault, Options, Status
from job_loop import polls, wire

# Seconds; even on a busy machine no process waits this long for a processor.
FROZEN_S = HUNG_S


class TimeOfDay:
    """The time of day as ``wire`` reads it.

    The emulator runs in the same process, so a freeze is only a jump of the time of day.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.seconds_per_read = 0.0
        self._passed = 0.0

    def __call__(self) -> float:
        self.reads += 1
        self._passed += self.seconds_per_read
        return time.time() + self._passed

    def freeze(self) -> None:
        self._passed += FROZEN_S


@pytest.fixture(autouse=True)
def time_of_day(monkeypatch: pytest.MonkeyPatch) -> TimeOfDay:
    clock = TimeOfDay()
    monkeypatch.setattr(wire, "FROZEN_S", FROZEN_S)
    monkeypatch.setattr(wire, "TICK_S", 0.01)
    monkeypatch.setattr(wire, "time", SimpleNamespace(time=clock, monotonic=time.monotonic))
    return clock


async def thaw(platform: Platform, time_of_day: TimeOfDay) -> ClientSession:
    """Freeze and thaw the process; return the session that it had before."""
    before = platform.wire._session
    time_of_day.freeze()
    await poll_until(lambda: platform.wire._session is not before)
    return before


async def test_an_idle_worker_takes_its_next_job_on_new_connections(
    platform: Platform, caplog: pytest.LogCaptureFixture, time_of_day: TimeOfDay
) -> None:
    caplog.set_level("INFO")
    await platform.run("before")
    await thaw(platform, time_of_day)
    assert (await platform.run("after")).output == ["after"]
    assert "thawed after 300 s" in caplog.text


async def test_an_open_take_is_closed_and_repeated(time_of_day: TimeOfDay) -> None:
    options = Options(long_poll_s=2 * HUNG_S)
    async with Emulator(options) as emulator, run_job_loop(emulator) as platform:
        worker = emulator.queue.get_worker("w")
        await poll_until(lambda: worker.takes == 1)
        await thaw(platform, time_of_day)
        await poll_until(lambda: worker.takes == 2)


async def test_a_job_that_arrived_during_the_freeze_runs(
    platform: Platform, time_of_day: TimeOfDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough time to read the response even on a busy machine.
    monkeypatch.setattr(polls, "THAW_READ_S", HUNG_S)
    await platform.run("before")
    # A take is open.
    await poll_until(lambda: platform.emulator.queue.get_worker("w").takes == 2)
    job = platform.submit("during")
    time_of_day.freeze()
    assert await job.wait_for_end(HUNG_S)
    assert job.output == ["during"]


async def test_a_stream_continues_after_a_thaw(platform: Platform, time_of_day: TimeOfDay) -> None:
    job = platform.submit("a", HANG, stream=True)
    assert await anext(job.follow_chunks())
    await thaw(platform, time_of_day)
    assert (await platform.run("other")).status is Status.COMPLETED
    assert job.status is Status.IN_PROGRESS
    platform.emulator.queue.cancel(job)


async def test_posts_in_progress_finish_on_old_connections(
    platform: Platform, time_of_day: TimeOfDay
) -> None:
    platform.emulator.faults.add(Fault(on=Call.STREAM, do=Action.DELAY, delay_s=0.1, calls=1))
    job = platform.submit("a", "b", stream=True)
    assert await anext(job.follow_chunks())
    old_session = await thaw(platform, time_of_day)
    assert await job.wait_for_end(HUNG_S)
    assert (job.status, job.output) == (Status.COMPLETED, ["a", "b"])
    assert not old_session.closed


async def test_old_connections_are_closed_after_the_timeout_of_their_last_post(
    platform: Platform, time_of_day: TimeOfDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "POST_TIMEOUT_S", 0.005)
    old_session = await thaw(platform, time_of_day)
    await poll_until(lambda: old_session.closed)
    await poll_until(lambda: not platform.wire._closing_sessions)


async def test_shutdown_closes_all_connections(platform: Platform, time_of_day: TimeOfDay) -> None:
    sessions = [await thaw(platform, time_of_day) for _ in range(2)]
    sessions.append(platform.wire._session)
    platform.loop.start_shutdown()
    await platform.wait_for_exit()
    assert [session.closed for session in sessions] == [True] * 3


async def test_a_running_process_does_not_count_as_thawed(
    platform: Platform, caplog: pytest.LogCaptureFixture, time_of_day: TimeOfDay
) -> None:
    caplog.set_level("INFO")
    time_of_day.seconds_per_read = 0.8 * FROZEN_S
    reads = time_of_day.reads
    await platform.run("a")
    await poll_until(lambda: time_of_day.reads >= reads + 5)
    assert "thawed" not in caplog.text
