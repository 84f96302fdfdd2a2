"""A process that did not run for a while leaves its connections behind: they may be dead."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from support.job_loops import HANG, Platform
from support.processes.background import HUNG_S

from emulator import Status
from job_loop import polls, wire

# Seconds; no machine is so busy that a process which is to run does not run for as long.
FROZEN_S = HUNG_S


class Clock:
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
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(wire, "FROZEN_S", FROZEN_S)
    monkeypatch.setattr(wire, "TICK_S", 0.01)
    monkeypatch.setattr(wire, "time", SimpleNamespace(time=made, monotonic=time.monotonic))
    return made


async def thawed(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(HUNG_S):
        while "thawed after" not in caplog.text:
            await asyncio.sleep(0.001)


async def test_an_idle_worker_takes_its_next_job_on_new_connections(
    platform: Platform, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    caplog.set_level("INFO")
    await platform.run("before")
    session = platform.wire.session
    clock.freeze()
    await thawed(caplog)
    assert platform.wire.session is not session
    assert (await platform.run("after")).output == ["after"]


async def test_a_job_that_came_during_the_freeze_runs(
    platform: Platform, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer is read in that time, also on a busy machine.
    monkeypatch.setattr(polls, "READ_S", HUNG_S)
    await platform.run("before")
    # A take waits.
    await asyncio.sleep(0.05)
    job = platform.submit("during")
    clock.freeze()
    assert await job.wait_ended(HUNG_S)
    assert job.output == ["during"]


async def test_a_stream_goes_on_after_a_thaw(
    platform: Platform, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    caplog.set_level("INFO")
    job = platform.submit("a", HANG, stream=True)
    assert await anext(job.follow())
    clock.freeze()
    await thawed(caplog)
    assert (await platform.run("other")).status is Status.COMPLETED
    assert job.status is Status.IN_PROGRESS
    platform.emulator.queue.cancel(job)


async def test_a_process_that_runs_is_not_thawed(
    platform: Platform, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    caplog.set_level("INFO")
    clock.between_looks_s = 0.8 * FROZEN_S
    looks = clock.looks
    await platform.run("a")
    async with asyncio.timeout(HUNG_S):
        while clock.looks < looks + 5:
            await asyncio.sleep(0.001)
    assert "thawed" not in caplog.text
