"""A process that did not run for a while leaves its connections behind: they may be dead."""

import asyncio
import time

import pytest
from support.job_loops import HANG, Platform
from support.processes.background import HUNG_S

from emulator import Status
from job_loop import wire

FROZEN_S = 0.3


@pytest.fixture(autouse=True)
def short_freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FROZEN_S", FROZEN_S / 2)
    monkeypatch.setattr(wire, "TICK_S", 0.01)


def freeze() -> None:
    """Stop the whole process, the emulator too."""
    time.sleep(FROZEN_S)


async def thawed(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(HUNG_S):
        while "thawed after" not in caplog.text:
            await asyncio.sleep(0.001)


async def test_an_idle_worker_takes_its_next_job_on_new_connections(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await platform.run("before")
    session = platform.wire.session
    await asyncio.sleep(0.05)
    freeze()
    await thawed(caplog)
    assert platform.wire.session is not session
    assert (await platform.run("after")).output == ["after"]


async def test_a_job_that_came_during_the_freeze_runs(platform: Platform) -> None:
    await platform.run("before")
    # The clock ticks, and a take waits.
    await asyncio.sleep(0.05)
    job = platform.submit("during")
    freeze()
    assert await job.wait_ended(HUNG_S)
    assert job.output == ["during"]


async def test_a_stream_goes_on_after_a_thaw(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = platform.submit("a", HANG, stream=True)
    assert await anext(job.follow())
    freeze()
    await thawed(caplog)
    assert (await platform.run("other")).status is Status.COMPLETED
    assert job.status is Status.IN_PROGRESS
    platform.emulator.queue.cancel(job)


async def test_a_process_that_runs_is_not_thawed(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await platform.run("a")
    await asyncio.sleep(0.05)
    assert "thawed" not in caplog.text
