"""A platform with a job loop behind it, all in the test's process."""

from collections.abc import AsyncIterator

import pytest
from support.job_loops import Platform, run_job_loop

from emulator import Emulator
from job_loop import delivery, polls


@pytest.fixture(autouse=True)
def shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses after failed and empty polls to milliseconds."""
    for module in (delivery, polls):
        monkeypatch.setattr(module, "backoff_s", lambda _: 0.005)
    monkeypatch.setattr(polls, "MIN_INTERVAL_S", 0.02)


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with Emulator() as emulator, run_job_loop(emulator) as running:
        yield running
