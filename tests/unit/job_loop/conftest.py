"""A platform with a job loop behind it, all in the test's process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop
from support.job_loops import Platform, run_job_loop

from emulator import Emulator
from job_loop import delivery, polls


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Test the connections on production's kind of event loop, on which no emulator can run."""
    if item.path.name == "test_connections.py":
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


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
