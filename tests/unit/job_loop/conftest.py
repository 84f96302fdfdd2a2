"""A platform with a job loop behind it, all in the test's process."""

from collections.abc import AsyncIterator

import pytest
from support.job_loops import Platform, looping

from emulator import Emulator
from job_loop import delivery, polls


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what failed, or found nothing, be tried again after milliseconds."""
    for module in (delivery, polls):
        monkeypatch.setattr(module, "pause_s", lambda _: 0.005)
    monkeypatch.setattr(polls, "EMPTY_S", 0.02)


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with Emulator() as emulator, looping(emulator) as running:
        yield running
